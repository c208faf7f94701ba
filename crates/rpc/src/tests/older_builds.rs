//! Builds from before there were lanes: their hello has 88 bytes, and they have one connection for
//! everything.

use super::sides::{NO_LANES, bytes_of, hello_from_to, identity, identity_of_run};
use crate::admission::Admission;
use crate::channel::Channel;
use crate::dial::{Dial, Place};
use crate::frame::{Ending, Frame};
use crate::hello::{Credit, Credits, Hello, Lanes};
use crate::lanes::{Connections, Lane};
use crate::peer::Peer;
use crate::receive::Receiver;
use crate::server::Server;
use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use model::call::{Call, Class, Method, Reply};
use model::{NodeId, NodeRun};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use world::call::{Remote, Service};
use world::sim::Simulation;
use world::{Deadline, Task, World};

const CREDIT: Credit = Credit {
    requests: 16,
    bytes: 4 << 20,
};

async fn write(stream: &mut DuplexStream, frame: Frame) {
    let bytes = bytes_of(frame.encode());
    // The other side may have left.
    let _ = stream.write_all(&bytes).await;
}

/// The next frame; none after the end.
async fn read(stream: &mut DuplexStream, receiver: &mut Receiver) -> Option<Frame> {
    loop {
        if let Some(frame) = receiver.next(|_| Ok(())).unwrap() {
            return Some(frame);
        }
        match stream.read(receiver.space()).await {
            Ok(count) if count > 0 => receiver.received(count),
            _ => return None,
        }
    }
}

fn call(class: Class, number: u64) -> Call {
    let mut call = Call::new(Method(1), class, &number);
    if class == Class::Bulk {
        call.payload = vec![1; 1 << 20].into();
    }
    call
}

/// The answering side of another build.
struct OtherBuild {
    world: World,
    incarnation: Mutex<u64>,
    /// What its hello says of lanes.
    lanes: Mutex<Option<Lanes>>,
    /// The lane that each connection was opened for, and whether it is still there.
    opened: Mutex<Vec<(Lane, Arc<Mutex<bool>>)>>,
    tasks: Mutex<Vec<Task<()>>>,
}

impl Dial for OtherBuild {
    fn dial(&self, node: NodeId, place: Place, _: Deadline) -> BoxFuture<'_, io::Result<Channel>> {
        assert_eq!(node, NodeId(2));
        let (near, mut far) = duplex(64 << 10);
        let is_open = Arc::new(Mutex::new(true));
        self.opened.lock().push((place.lane, is_open.clone()));
        let lanes = *self.lanes.lock();
        let identity = identity_of_run(2, *self.incarnation.lock());
        let answering = async move {
            let mut receiver = Receiver::new(None);
            while let Some(frame) = read(&mut far, &mut receiver).await {
                match frame {
                    Frame::Hello(hello) => {
                        let lanes_asked = hello.lanes.expect("this build knows lanes");
                        assert_eq!(lanes_asked.lane, place.lane.number());
                        let mut answer = Hello::new(identity, NodeId(1), [CREDIT; 4], NO_LANES);
                        answer.lanes = lanes;
                        write(&mut far, Frame::Hello(answer)).await;
                    }
                    Frame::Request { number, call, .. } => {
                        let reply = Reply::new(&call.decode::<u64>(), Bytes::new());
                        let reply = Frame::Reply {
                            number,
                            class: call.class,
                            ending: Ending::Answered(reply),
                        };
                        write(&mut far, reply).await;
                    }
                    _ => {}
                }
            }
            *is_open.lock() = false;
        };
        let task = self.world.spawn("answers", answering);
        self.tasks.lock().push(task);
        Box::pin(async move { Ok(Channel::plain(near)) })
    }
}

impl OtherBuild {
    fn open(&self) -> Vec<Lane> {
        let opened = self.opened.lock();
        let open = opened.iter().filter(|(_, is_open)| *is_open.lock());
        open.map(|(lane, _)| *lane).collect()
    }
}

#[test]
fn a_node_that_knows_no_lanes_is_called_over_one_connection_until_it_is_upgraded() {
    Simulation::new(1)
        .run(|world| async move {
            let other = Arc::new(OtherBuild {
                world: world.clone(),
                incarnation: Mutex::new(1),
                lanes: Mutex::new(None),
                opened: Mutex::default(),
                tasks: Mutex::default(),
            });
            let peer = Peer::new(&world, identity(1), NodeId(2), other.clone());
            let most = Connections {
                max: 8,
                ..Connections::default()
            };
            peer.set_connections(most).unwrap();
            let ask = async |class, number| {
                let deadline = Deadline::after(&world, Duration::from_secs(10));
                let answer = peer.call(call(class, number), deadline).await.unwrap();
                assert_eq!(answer.reply.decode::<u64>(), Ok(number));
                answer.from.incarnation
            };
            // All lanes begin at the same time; each learns what the node is.
            let numbers = 0..40;
            join_all(numbers.map(|number| ask(Class::ALL[number as usize % 4], number))).await;
            world.sleep(Duration::from_secs(2)).await;
            assert_eq!(other.open(), [Lane::Small]);
            for number in 0..8 {
                ask(Class::ALL[number as usize % 4], number).await;
            }
            assert_eq!(other.open(), [Lane::Small]);
            assert!(
                other.opened.lock().len() <= 3,
                "each lane asked once at most"
            );

            // Its next daemon knows lanes.
            other.tasks.lock().clear();
            *other.incarnation.lock() = 2;
            *other.lanes.lock() = Some(Lanes {
                lane: 0,
                connections: 8,
            });
            world.sleep(Duration::from_millis(100)).await;
            for class in Class::ALL.into_iter().chain(Class::ALL) {
                assert_eq!(ask(class, 7).await, 2);
            }
            let open = other.open();
            for lane in Lane::ALL {
                assert!(open.contains(&lane), "{open:?}");
            }
        })
        .finished();
}

struct Echo;

impl Service for Echo {
    fn serve(&self, _: NodeRun, call: Call, _: Deadline) -> BoxFuture<'_, Reply> {
        Box::pin(async move { Reply::new(&call.decode::<u64>(), Bytes::new()) })
    }
}

#[test]
fn a_caller_that_knows_no_lanes_has_one_connection_for_all_classes() {
    Simulation::new(2)
        .run(|world| async move {
            let admission = Admission {
                credits: [CREDIT; 4],
                small_data: CREDIT,
                running: [4; 4],
                connections: 10,
            };
            let server = Server::new(&world, identity(2), admission, Arc::new(Echo));
            let greet = async || {
                let (mut near, far) = duplex(64 << 10);
                server.accept(far);
                let mut hello = hello_from_to(1, 2, Credits::default(), NO_LANES);
                hello.lanes = None;
                write(&mut near, Frame::Hello(hello)).await;
                let mut receiver = Receiver::new(None);
                let answer = read(&mut near, &mut receiver).await;
                let Some(Frame::Hello(answer)) = answer else {
                    panic!("{answer:?}");
                };
                assert_eq!(answer.credits, [CREDIT; 4]);
                (near, receiver)
            };
            let (mut first, mut receiver) = greet().await;
            // It doesn't know this frame, so it must not get it.
            server.set_connections(Connections::default()).unwrap();
            for (number, class) in (1..).zip(Class::ALL) {
                let request = Frame::Request {
                    number,
                    budget: Duration::from_secs(5),
                    call: call(class, number),
                };
                write(&mut first, request).await;
                let mut reply = read(&mut first, &mut receiver).await;
                while reply == Some(Frame::Alive) {
                    reply = read(&mut first, &mut receiver).await;
                }
                let Some(Frame::Reply { ending, .. }) = reply else {
                    panic!("{reply:?}");
                };
                let Ending::Answered(reply) = ending else {
                    panic!("{ending:?}");
                };
                assert_eq!(reply.decode::<u64>(), Ok(number));
            }
            let (_second, _) = greet().await;
            assert_eq!(read(&mut first, &mut receiver).await, None, "it has one");
            let views = server.connections();
            assert_eq!(views.len(), 1);
            assert_eq!(views[0].lane, None);
        })
        .finished();
}
