//! Requests as both transports deliver them, complete and truncated.

use super::*;
use fuzzing::{Memory, ROUNDS, Seen, Source, fuzz, within};
use zerocopy::{FromZeros, IntoBytes};

fn bytes(code: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(40 + body.len()).expect("short");
    let header = InHeader {
        len,
        opcode: code,
        unique: 2,
        nodeid: 9,
        ..InHeader::default()
    };
    [header.as_bytes(), body].concat()
}

#[test]
fn a_rename_carries_both_names() {
    let args = abi::Rename2In {
        newdir: 5,
        flags: 1,
        padding: 0,
    };
    let whole = bytes(opcode::RENAME2, &[args.as_bytes(), b"old\0new\0"].concat());
    let request = Incoming::from_device(&whole, true)
        .expect("well formed")
        .parse()
        .expect("well formed");
    assert!(matches!(
        request,
        Request::Name(NameRequest::Rename {
            to: InodeId(5),
            flags: 1,
            from_name: b"old",
            to_name: b"new"
        })
    ));
}

#[test]
fn setxattr_is_understood_in_both_lengths() {
    let short = abi::SetxattrInOld { size: 3, flags: 0 };
    let long = abi::SetxattrIn {
        size: 3,
        setxattr_flags: abi::SETXATTR_ACL_KILL_SGID,
        ..Default::default()
    };
    for (is_long, head) in [(false, short.as_bytes()), (true, long.as_bytes())] {
        let whole = bytes(opcode::SETXATTR, &[head, b"user.a\0xyz"].concat());
        let request = Incoming::from_device(&whole, is_long)
            .expect("well formed")
            .parse()
            .expect("well formed");
        assert!(matches!(
            request,
            Request::Attribute(AttributeRequest::Setxattr {
                name: b"user.a",
                value: b"xyz",
                drop_setgid,
                ..
            }) if drop_setgid == is_long
        ));
    }
}

#[test]
fn truncated_requests_are_refused_not_read_beyond_their_end() {
    // Bytes of the first argument, from the kernel's fuse.h.
    let fixed = [
        (opcode::FORGET, 8),
        (opcode::SETATTR, 88),
        (opcode::MKNOD, 16),
        (opcode::MKDIR, 8),
        (opcode::RENAME, 8),
        (opcode::LINK, 8),
        (opcode::OPEN, 8),
        (opcode::READ, 40),
        (opcode::WRITE, 40),
        (opcode::RELEASE, 24),
        (opcode::FSYNC, 16),
        (opcode::SETXATTR, 16),
        (opcode::GETXATTR, 8),
        (opcode::LISTXATTR, 8),
        (opcode::FLUSH, 24),
        (opcode::READDIR, 40),
        (opcode::RELEASEDIR, 24),
        (opcode::FSYNCDIR, 16),
        (opcode::GETLK, 48),
        (opcode::SETLK, 48),
        (opcode::SETLKW, 48),
        (opcode::CREATE, 16),
        (opcode::INTERRUPT, 8),
        (opcode::BATCH_FORGET, 8),
        (opcode::FALLOCATE, 32),
        (opcode::READDIRPLUS, 40),
        (opcode::RENAME2, 16),
        (opcode::LSEEK, 24),
        (opcode::COPY_FILE_RANGE, 56),
    ];
    for (code, needed) in fixed {
        for length in 0..needed {
            let whole = bytes(code, &vec![0; length]);
            let incoming = Incoming::from_device(&whole, true).expect("its length is right");
            assert!(incoming.parse().is_err(), "{length} bytes of opcode {code}");
        }
    }
    // Names end with a zero byte, and data must have the stated length.
    for code in [
        opcode::LOOKUP,
        opcode::UNLINK,
        opcode::RMDIR,
        opcode::SYMLINK,
    ] {
        let whole = bytes(code, b"name without an end");
        let incoming = Incoming::from_device(&whole, true).expect("its length is right");
        assert!(incoming.parse().is_err(), "a cut name of opcode {code}");
    }
    let one_name = [&[0; 16][..], b"old\0"].concat();
    let whole = bytes(opcode::RENAME2, &one_name);
    let incoming = Incoming::from_device(&whole, true).expect("its length is right");
    assert!(incoming.parse().is_err(), "a rename to nothing");
    let write = abi::WriteIn {
        size: 10,
        ..Default::default()
    };
    for (length, is_whole) in [(9, false), (10, true)] {
        let whole = bytes(
            opcode::WRITE,
            &[write.as_bytes(), &vec![7; length]].concat(),
        );
        let incoming = Incoming::from_device(&whole, true).expect("its length is right");
        assert_eq!(incoming.parse().is_ok(), is_whole, "{length} of 10 bytes");
    }
    let mut whole = bytes(opcode::LOOKUP, b"x\0");
    whole[0] = 200;
    assert_eq!(
        Incoming::from_device(&whole, true).err(),
        Some(Malformed::Short)
    );
    whole[0] = 3;
    assert_eq!(
        Incoming::from_device(&whole, true).err(),
        Some(Malformed::Short)
    );
}

#[test]
fn a_ring_delivers_the_same_requests_in_two_parts() {
    let ring = |code, first: &[u8], payload_sz: usize, total_extlen| {
        let header = InHeader {
            opcode: code,
            total_extlen,
            ..InHeader::default()
        };
        let mut ring = RingHeader::new_zeroed();
        ring.in_out[..40].copy_from_slice(header.as_bytes());
        ring.op_in[..first.len()].copy_from_slice(first);
        ring.payload_sz = u32::try_from(payload_sz).expect("short");
        ring
    };
    let rename = abi::Rename2In {
        newdir: 5,
        ..Default::default()
    };
    // Bytes after the payload, left over from an earlier request, aren't part of this one.
    let payload = b"old\0new\0garbage";
    let two_names = ring(opcode::RENAME2, rename.as_bytes(), 8, 0);
    let parsed = Incoming::from_ring(&two_names, payload, true).map(|incoming| incoming.parse());
    assert!(matches!(
        parsed,
        Ok(Ok(Request::Name(NameRequest::Rename {
            from_name: b"old",
            to_name: b"new",
            ..
        })))
    ));
    let names_only = ring(opcode::SYMLINK, &[], 8, 0);
    let parsed = Incoming::from_ring(&names_only, payload, true).map(|incoming| incoming.parse());
    assert!(matches!(
        parsed,
        Ok(Ok(Request::Name(NameRequest::Symlink {
            name: b"old",
            target: b"new"
        })))
    ));
    let long = abi::SetxattrIn {
        size: 3,
        flags: libc::XATTR_REPLACE as u32,
        setxattr_flags: abi::SETXATTR_ACL_KILL_SGID,
        padding: 0,
    };
    let xattr = ring(opcode::SETXATTR, long.as_bytes(), 7, 0);
    for is_long in [true, false] {
        let parsed = Incoming::from_ring(&xattr, payload, is_long);
        // Without the extension the second half is left over from an earlier request.
        assert!(matches!(
            parsed.map(|incoming| incoming.parse()),
            Ok(Ok(Request::Attribute(AttributeRequest::Setxattr {
                name: b"old",
                value: b"new",
                flags: 2,
                drop_setgid,
            }))) if drop_setgid == is_long
        ));
    }
    let extended = ring(opcode::MKDIR, &[0; 8], 12, 1);
    let parsed = Incoming::from_ring(&extended, payload, true).map(|incoming| incoming.rest);
    assert_eq!(parsed.ok(), Some(&b"old\0"[..]), "the extension is cut off");
    for wrong in [
        ring(opcode::LOOKUP, &[], 99, 0),
        ring(opcode::LOOKUP, &[], 4, 1),
    ] {
        let parsed = Incoming::from_ring(&wrong, payload, true);
        assert_eq!(parsed.err(), Some(Malformed::Short));
    }
}

/// Whatever comes from the kernel, or is left in a ring entry from an earlier request.
#[test]
fn any_bytes_are_a_request_or_refused() {
    let parsed = Seen::default();
    let check = |incoming: Result<Incoming<'_>, Malformed>, bytes: usize| {
        let Ok(incoming) = incoming else { return };
        let request = within(Memory::SMALL, bytes, || incoming.parse());
        let Ok(request) = request else { return };
        parsed.note();
        let within_rest = |part: &[u8]| part.len() <= incoming.rest.len();
        match request {
            Request::Data(DataRequest::Write { args, data }) => {
                assert!(data.len() == args.size as usize && within_rest(data));
            }
            Request::Name(NameRequest::Rename {
                from_name, to_name, ..
            }) => {
                assert!(from_name.len() + to_name.len() + 2 <= incoming.rest.len());
            }
            Request::BatchForget { count, ones } => {
                let forgotten = forgets(count, ones).count();
                assert!(forgotten <= count && forgotten <= ones.len() / 16);
            }
            _ => {}
        }
    };
    fuzz!(2 * ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let long_setxattr = source.chance();
        let code = match source.below(8) {
            0 => source.number() as u32,
            _ => u32::from(source.byte()) % 60,
        };
        let mut header = InHeader {
            opcode: code,
            unique: source.number(),
            nodeid: source.number(),
            total_extlen: if source.below(8) == 0 {
                source.number() as u16
            } else {
                0
            },
            ..InHeader::default()
        };
        let mut body = source.bytes(400);
        if source.chance() {
            body.extend(b"name\0second name\0data");
        }
        // Sizes that fit, as the kernel's do.
        if source.chance() {
            let size = (body.len() as u32 / 2).to_le_bytes();
            for at in [0, 16] {
                if let Some(field) = body.get_mut(at..at + 4) {
                    field.copy_from_slice(&size);
                }
            }
        }
        header.len = match source.below(4) {
            0 => source.number() as u32,
            _ => 40 + body.len() as u32,
        };
        let device = [header.as_bytes(), &body].concat();
        check(Incoming::from_device(&device, long_setxattr), device.len());
        check(Incoming::from_device(input, long_setxattr), input.len());
        let changed = source.changed(&device);
        check(
            Incoming::from_device(&changed, long_setxattr),
            changed.len(),
        );

        let mut ring = RingHeader::new_zeroed();
        ring.in_out[..40].copy_from_slice(header.as_bytes());
        ring.op_in = source.array();
        ring.payload_sz = match source.chance() {
            true => body.len() as u32,
            false => source.number() as u32,
        };
        check(Incoming::from_ring(&ring, &body, long_setxattr), body.len());
    });
    parsed.check(250, "requests are parsed");
}
