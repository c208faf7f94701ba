//! What messages take between two threads of this machine, without any daemon: less than that no call of another node can take.

use super::processes::Spent;
use model::{Error, ErrorKind};
use std::io::{Read, Result, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

/// How often a message goes there and back.
const ROUNDS: u32 = 5_000;
/// Bytes of a message of a stream: those of a piece of a segment.
const PIECE: usize = 1 << 20;

/// Microseconds of a message of so many bytes and its answer, over a connection of the loopback.
///
/// # Errors
/// `Unavailable`: there is no such connection, or it broke.
pub fn round_trip(asked: usize, answered: usize) -> model::Result<f64> {
    measured(asked, answered).map_err(|e| broke(&e))
}

/// Seconds of CPU time, of both sides, for so many bytes in one direction.
///
/// # Errors
/// As [`round_trip`].
pub fn seconds_used(bytes: u64) -> model::Result<f64> {
    let own = [(String::new(), std::process::id())];
    let (moved, spent) = Spent::by(&own, || streamed(bytes / PIECE as u64))?;
    moved.map_err(|e| broke(&e))?;
    Ok(spent.busy())
}

fn broke(error: &std::io::Error) -> Error {
    let text = format!("sending over the loopback: {error}");
    Error::new(ErrorKind::Unavailable, text)
}

/// Both ends of a connection.
fn connected() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // The kernel makes the connection before it is accepted.
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    Ok((near, far))
}

fn streamed(pieces: u64) -> Result<()> {
    let (mut near, mut far) = connected()?;
    thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let mut piece = vec![0; PIECE];
            (0..pieces).try_for_each(|_| far.read_exact(&mut piece))
        });
        let piece = vec![1; PIECE];
        let sent = (0..pieces).try_for_each(|_| near.write_all(&piece));
        // Otherwise the receiver would wait for ever for what hasn't left.
        drop(near);
        let received = receiver.join().expect("it doesn't panic");
        sent.and(received)
    })
}

fn measured(asked: usize, answered: usize) -> Result<f64> {
    let (near, far) = connected()?;
    thread::scope(|scope| {
        let answerer = scope.spawn(move || answer(far, asked, answered));
        let took = ask(near, asked, answered);
        let served = answerer.join().expect("it doesn't panic");
        served.and(took)
    })
}

fn ask(mut stream: TcpStream, asked: usize, answered: usize) -> Result<f64> {
    stream.set_nodelay(true)?;
    let (message, mut reply) = (vec![1; asked], vec![0; answered]);
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        stream.write_all(&message)?;
        stream.read_exact(&mut reply)?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS))
}

fn answer(mut stream: TcpStream, asked: usize, answered: usize) -> Result<()> {
    stream.set_nodelay(true)?;
    let (mut message, reply) = (vec![0; asked], vec![1; answered]);
    for _ in 0..ROUNDS {
        stream.read_exact(&mut message)?;
        stream.write_all(&reply)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_goes_there_and_back() {
        assert!(round_trip(100, 5_000).unwrap() > 0.0);
    }

    #[test]
    fn a_stream_comes_whole() {
        streamed(3).unwrap();
        assert!(seconds_used(PIECE as u64).unwrap() >= 0.0);
    }
}
