use super::*;

/// A query as a client would send it.
pub fn query(name: &str, kind: u16, size: Option<u16>) -> Vec<u8> {
    let mut bytes = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(size.is_some())];
    bytes.extend_from_slice(Name::from_text(name).unwrap().wire());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&[0, 1]);
    if let Some(size) = size {
        bytes.extend_from_slice(&[0, 0, 41]);
        bytes.extend_from_slice(&size.to_be_bytes());
        bytes.extend_from_slice(&[0; 6]);
    }
    bytes
}

#[test]
fn queries_are_read() {
    let read = Query::read(&query("a.b", kind::A, Some(1232))).unwrap();
    assert_eq!((read.name.to_string().as_str(), read.kind, read.max_response_size()), ("a.b.", kind::A, 1232));
    assert!(read.recursion_desired);
    assert_eq!(Query::read(&query("a.b", kind::A, None)).unwrap().max_response_size(), 512);
    let mut response = query("a", kind::A, None);
    response[2] |= 0x80;
    assert_eq!(Query::read(&response).unwrap_err(), QueryError::Silence);
    let mut update = query("a", kind::A, None);
    update[2] = 5 << 3;
    assert_eq!(Query::read(&update).unwrap_err(), QueryError::Error(Code::NotImplemented));
    let whole = query("some.name", kind::A, Some(512));
    for length in HEADER..whole.len() {
        assert!(Query::read(&whole[..length]).is_err(), "cut at {length}");
    }
}

#[test]
fn a_pointer_to_itself_is_no_name() {
    assert!(read_name(&[0xc0, 0], 0).is_none());
    assert!(read_name(&[1, b'a', 0xc0, 0], 0).is_none(), "a name without an end");
}

/// Each of many records may lead through a long chain of pointers: reading them must not cost their product.
#[test]
fn long_chains_of_pointers_are_no_name() {
    let mut message = vec![0];
    for at in 0..200u16 {
        let target = if at == 0 { 0 } else { 1 + 2 * (at - 1) };
        message.extend_from_slice(&(0xc000 | target).to_be_bytes());
    }
    assert!(read_name(&message, 1 + 2 * 15).is_some());
    assert!(read_name(&message, 1 + 2 * 16).is_none());
    assert!(read_name(&message, message.len() - 2).is_none());
}

/// A client's own options choose no response that others get as well.
#[test]
fn nothing_but_the_question_is_forwarded() {
    let mut request = query("a.b", kind::A, Some(4096));
    let plain = request.clone();
    // The client's network (RFC 7871), a record of its own, and no recursion.
    let end = request.len();
    request[end - 2..].copy_from_slice(&12u16.to_be_bytes());
    request.extend_from_slice(&[0, 8, 0, 8, 0, 1, 24, 0, 203, 0, 113, 0]);
    request[2] = 0;
    request[9] = 1;
    let question = request.len() - 12 - 11;
    request.splice(question..question, [0, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 6, 6, 6, 6]);
    let read = Query::read(&request).unwrap();
    assert!(read.extension.is_some() && !read.recursion_desired);
    let mut sent = forwarded_question(&read.name, &read);
    sent[..2].copy_from_slice(&plain[..2]);
    assert_eq!(sent, plain);
}

#[test]
fn what_does_not_fit_is_cut() {
    let request = query("a.b", kind::A, None);
    let read = Query::read(&request).unwrap();
    let record = Record { owner: None, time_to_live: 5, data: Data::A([1, 2, 3, 4].into()) };
    let sections = Sections { answers: vec![record; 100], ..Sections::default() };
    let mut out = Vec::new();
    write(&mut out, &request, &read, Code::NoError, true, &sections, 512);
    assert!(out.len() <= 512 && out[2] & 2 != 0);
    write(&mut out, &request, &read, Code::NoError, true, &sections, 65_535);
    assert_eq!((out[2] & 2, read_number(&out, 6)), (0, Some(100)));
    let mut at = read.question_end;
    for _ in 0..100 {
        at = read_record(&out, at).unwrap().data.end;
    }
    assert_eq!(at, out.len());
}
