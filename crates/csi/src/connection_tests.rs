//! Frames in pieces, and what a server reads of them.

use super::*;

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

/// What a server reads of these frames, which arrive in pieces of some size.
fn read(frames: &[Vec<u8>], piece: usize) -> Vec<u8> {
    let sent = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frames.concat()].concat();
    let (mut state, mut output) = (Frames::default(), Vec::new());
    for bytes in sent.chunks(piece) {
        state.push(bytes, &mut output);
    }
    assert_eq!(output.len(), sent.len(), "nothing is held back or added");
    output.split_off(PREFACE)
}

const METHOD: &[u8] = b"\x83";
const PATH: &[u8] = b"\x44\x02/m";

#[test]
fn the_authority_is_overwritten_wherever_it_is() {
    let plain = b"\x41\x07/a.sock".as_slice();
    let replaced = b"\x41\x07aaaaaaa".as_slice();
    let never_indexed = b"\x11\x07/a.sock".as_slice();
    let coded = b"\x41\x83\x61\x62\x63".as_slice();
    // A length of 127 + 3, in two bytes.
    let long = [b"\x41\x7f\x03".as_slice(), &[b'/'; 130]].concat();
    for (flags, before, sent, expected, after) in [
        (0x4, METHOD, plain, replaced, PATH),
        (0x4, PATH, plain, replaced, METHOD),
        (0x4, b"\x40\x02xy\x01z", plain, replaced, b"\x3f\x02".as_slice()),
        (0x4, METHOD, never_indexed, b"\x11\x07aaaaaaa", PATH),
        (0x4, METHOD, coded, b"\x41\x03aaa", PATH),
        (0x4, METHOD, &long, &[b"\x41\x7f\x03".as_slice(), &[b'a'; 130]].concat(), PATH),
        // Padding and priority come first, and padding is not read.
        (0x4 | PADDED, b"\x09\x83", plain, replaced, plain),
        (0x4 | PRIORITY, b"\x41\x41\x41\x41\x41\x83", plain, replaced, PATH),
        (0x4 | PADDED | PRIORITY, b"\x00\x41\x41\x41\x41\x41\x83", plain, replaced, PATH),
    ] {
        let settings = frame(4, 0, b"\x00\x03\x00\x00\x00\x64");
        let sent = frame(HEADERS, flags, &[before, sent, after].concat());
        let expected = frame(HEADERS, flags, &[before, expected, after].concat());
        let data = frame(0, 1, plain);
        for piece in [1, 2, 7, 1000] {
            let seen = read(&[settings.clone(), sent.clone(), data.clone()], piece);
            assert_eq!(seen, [settings.clone(), expected.clone(), data.clone()].concat(), "{flags} {before:?} {piece}");
        }
    }
}

#[test]
fn other_frames_and_unreadable_blocks_pass() {
    let large = vec![0x41; MAX_FRAME + 1];
    for (kind, flags, payload) in [
        (0, 0, b"\x41\x07/a.sock".as_slice()),
        (9, 4, b"\x41\x07/a.sock"),
        (HEADERS, 4, b""),
        (HEADERS, 4, b"\x41"),
        (HEADERS, 4, b"\x41\x07/a"),
        (HEADERS, 4, b"\x41\x7f\xff\xff\xff\xff\xff\xff/a"),
        (HEADERS, 4, b"\xff\xff\xff"),
        (HEADERS, PADDED, b""),
        (HEADERS, PADDED, b"\xff\x41\x01/"),
        (HEADERS, PRIORITY, b"\x41\x01/"),
        (HEADERS, 4, large.as_slice()),
    ] {
        let sent = [frame(kind, flags, payload), frame(6, 0, b"01234567")];
        assert_eq!(read(&sent, 1000), sent.concat(), "{kind} {flags} {payload:?}");
    }
}

#[test]
fn arbitrary_bytes_are_neither_lost_nor_added() {
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    for _ in 0..2000 {
        let payload: Vec<u8> = (0..random()).map(|_| random()).collect();
        read(
            &[frame(HEADERS, random(), &payload), frame(random() & 0xf, random(), &payload)],
            usize::from(random()) + 1,
        );
    }
}
