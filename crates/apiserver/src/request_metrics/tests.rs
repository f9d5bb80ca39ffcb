use super::*;

#[test]
fn the_most_requests_of_the_last_second_are_reported() {
    let gauge = InFlight::default();
    for _ in 0..3 {
        gauge.start(7);
    }
    gauge.finish();
    gauge.finish();
    assert_eq!((gauge.peak(7), gauge.peak(8), gauge.peak(9)), (3, 3, 1));
    gauge.start(9);
    assert_eq!(gauge.peak(9), 2);
}

#[test]
fn codes_are_written_without_an_allocation() {
    assert_eq!(code_text(200, &mut [0; 3]), "200");
    assert_eq!(code_text(504, &mut [0; 3]), "504");
}

#[test]
fn labels_come_from_fixed_sets() {
    let target = |verb: &str, name: &str, namespace: &str| Target {
        verb: verb.into(),
        resource: "pods".into(),
        name: name.into(),
        namespace: namespace.into(),
        ..Target::default()
    };
    for (verb, name, namespace, expected) in [
        ("list", "", "", "cluster"),
        ("list", "", "n", "namespace"),
        ("get", "p", "n", "resource"),
        ("create", "", "n", "resource"),
    ] {
        assert_eq!(scope(&target(verb, name, namespace)), expected);
    }
    assert_eq!(scope(&Target::default()), "");
    for (query, expected) in
        [("", ""), ("dryRun=All", "All"), ("dryRun=All&dryRun=All", "All"), ("dryRun=x", "invalid")]
    {
        assert_eq!(dry_run(&Query::parse(query)), expected, "{query}");
    }
    let patch = |kind: &str| {
        let request = http::Request::patch("/").header(CONTENT_TYPE, kind).body(()).unwrap();
        verb(&request.into_parts().0, &target("patch", "p", "n"))
    };
    assert_eq!(patch("application/apply-patch+yaml"), "APPLY");
    assert_eq!(patch("application/merge-patch+json"), "PATCH");
}
