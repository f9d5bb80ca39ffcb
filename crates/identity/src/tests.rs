use super::*;

const CN: &[u8] = &[0x55, 4, 3];
const O: &[u8] = &[0x55, 4, 10];
const COUNTRY: &[u8] = &[0x55, 4, 6];
const KUBERNETES_UID: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2];

const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const TELETEX: u8 = 0x14;
const IA5: u8 = 0x16;
const BMP: u8 = 0x1e;

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    assert!(content.len() < 0x80, "short forms only");
    [&[tag, content.len() as u8], content].concat()
}

type Attribute<'a> = (&'a [u8], u8, &'a [u8]);

/// A name of relative distinguished names, each of one or more attributes.
fn read(parts: &[&[Attribute<'_>]]) -> Result<Identity, IdentityError> {
    let parts = parts.iter().map(|attributes| {
        let attributes = attributes
            .iter()
            .map(|(id, tag, value)| element(0x30, &[element(0x06, id), element(*tag, value)].concat()));
        element(0x31, &attributes.collect::<Vec<_>>().concat())
    });
    let name = element(0x30, &parts.collect::<Vec<_>>().concat());
    of_subject(&X509Name::from_der(&name).expect("a name").1)
}

#[test]
fn a_plain_subject_names_user_and_groups() {
    let identity = read(&[
        &[(COUNTRY, PRINTABLE, b"NO")],
        &[(O, UTF8, b"team-a"), (O, PRINTABLE, b"team-b")],
        &[(O, IA5, b"team@c")],
        &[(CN, UTF8, "müller".as_bytes())],
        &[(KUBERNETES_UID, UTF8, b"7")],
    ]);
    let groups = ["team-a", "team-b", "team@c"].map(str::to_owned).into();
    assert_eq!(identity, Ok(Identity { name: "müller".into(), uid: "7".into(), groups }));
}

#[test]
fn an_ambiguous_subject_names_no_user() {
    use IdentityError::{Empty, MultiValued, NoCommonName, Repeated, Text};
    let node: Attribute<'_> = (CN, UTF8, b"system:node:x");
    let manager: Attribute<'_> = (CN, UTF8, b"system:kube-controller-manager");
    let nodes: Attribute<'_> = (O, UTF8, b"system:nodes");
    for (case, parts, error) in [
        ("two names", &[&[nodes][..], &[manager], &[node]][..], Repeated(COMMON_NAME)),
        ("two equal names", &[&[node], &[node]], Repeated(COMMON_NAME)),
        ("two names in one set", &[&[manager, node]], MultiValued(COMMON_NAME)),
        ("a name and a group in one set", &[&[node, nodes]], MultiValued(COMMON_NAME)),
        (
            "a country and a group in one set",
            &[&[(COUNTRY, PRINTABLE, b"NO"), nodes], &[node]],
            MultiValued(ORGANIZATION),
        ),
        ("a group twice", &[&[nodes], &[nodes], &[node]], Repeated("organization of one name")),
        ("no name", &[&[nodes]], NoCommonName),
        ("nothing", &[], NoCommonName),
        ("an empty name", &[&[(CN, UTF8, b"")]], Empty(COMMON_NAME)),
        ("an empty name before another", &[&[(CN, UTF8, b"")], &[node]], Empty(COMMON_NAME)),
        ("an empty group", &[&[(O, UTF8, b"")], &[node]], Empty(ORGANIZATION)),
        ("a NUL", &[&[(CN, UTF8, b"system:node:x\0.example")]], Text(COMMON_NAME)),
        ("a line's end", &[&[(CN, UTF8, b"a\nb")]], Text(COMMON_NAME)),
        ("invalid UTF-8", &[&[(CN, UTF8, b"\xff\xfe")]], Text(COMMON_NAME)),
        ("invalid UTF-8 in a group", &[&[(O, UTF8, b"\xff")], &[node]], Text(ORGANIZATION)),
        ("teletex", &[&[(CN, TELETEX, b"a")]], Text(COMMON_NAME)),
        ("sixteen bits", &[&[(CN, BMP, b"\0a")]], Text(COMMON_NAME)),
        ("a number", &[&[(CN, 0x02, b"7")]], Text(COMMON_NAME)),
        ("a character that is not printable", &[&[(CN, PRINTABLE, b"a@b")]], Text(COMMON_NAME)),
        ("a character beyond ASCII", &[&[(CN, IA5, "ü".as_bytes())]], Text(COMMON_NAME)),
        ("a constructed string", &[&[(CN, UTF8 | 0x20, b"\x0c\x01a")]], Text(COMMON_NAME)),
        ("two user IDs", &[&[(KUBERNETES_UID, UTF8, b"1")], &[(KUBERNETES_UID, UTF8, b"2")], &[node]], Repeated(UID)),
    ] {
        assert_eq!(read(parts), Err(error), "{case}");
    }
}

#[test]
fn certificates_and_requests_are_read_alike() {
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "team");
    params.distinguished_name.push(rcgen::DnType::CommonName, "jane");
    let key = rcgen::KeyPair::generate().unwrap();
    let expected = Ok(Identity { name: "jane".into(), uid: String::new(), groups: vec!["team".into()] });
    let certificate = params.self_signed(&key).unwrap();
    assert_eq!(of_certificate(certificate.der()), expected);
    assert!(!is_node_certificate(certificate.der()) && is_node_certificate(b"nonsense"));
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    assert!(is_node_certificate(params.self_signed(&key).unwrap().der()));
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "team");
    let trailing = [certificate.der().as_ref(), b"x"].concat();
    assert_eq!(of_certificate(&trailing), Err(IdentityError::Certificate));
    assert_eq!(of_certificate(b"nonsense"), Err(IdentityError::Certificate));
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    assert_eq!(of_request(request.as_bytes()), expected);
    assert_eq!(of_request(certificate.pem().as_bytes()), Err(IdentityError::RequestType));
}
