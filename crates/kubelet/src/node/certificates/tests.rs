use super::*;

#[test]
fn renewal_comes_before_the_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut parameters = CertificateParams::new(vec!["a".to_string()]).expect("parameters");
    parameters.not_before = rcgen::date_time_ymd(2026, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(2026, 1, 11);
    let key = KeyPair::generate().expect("a key");
    let path = directory.path().join("c.crt");
    std::fs::write(&path, parameters.self_signed(&key).expect("signed").pem()).expect("written");
    let expected: Timestamp = "2026-01-09T00:00:00Z".parse().expect("a moment");
    assert_eq!(renew_at(&path).expect("a moment"), expected);
    for (name, address, at) in
        [("a", None, expected), ("b", None, Timestamp::UNIX_EPOCH), ("a", Some([10, 0, 0, 1]), Timestamp::UNIX_EPOCH)]
    {
        let addresses = address.into_iter().map(IpAddr::from).collect();
        let purpose = Purpose::Serving { names: vec![name.to_string()], addresses };
        assert_eq!(due(&path, &purpose).expect("a moment"), at, "{name} {address:?}");
    }
}

#[test]
fn a_pair_that_was_half_replaced_is_whole_again() {
    for (left_beside, expected) in [
        (vec!["key"], ("old", "old")),
        (vec!["key", "crt"], ("old", "old")),
        (vec!["crt"], ("new", "new")),
        (vec![], ("old", "old")),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let files = files(directory.path(), &Purpose::Client);
        let is_moved = left_beside == ["crt"];
        std::fs::write(&files.key, if is_moved { "new" } else { "old" }).expect("written");
        std::fs::write(&files.certificate, "old").expect("written");
        for extension in &left_beside {
            std::fs::write(directory.path().join(format!("kubelet-client.{extension}.new")), "new").expect("written");
        }
        finish_replacement(directory.path(), &Purpose::Client).expect("finished");
        let text = |path: &Path| std::fs::read_to_string(path).expect("read");
        let found = (text(&files.key), text(&files.certificate));
        assert_eq!((found.0.as_str(), found.1.as_str()), expected, "{left_beside:?}");
    }
}
