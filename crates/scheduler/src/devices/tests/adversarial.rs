//! Claims and slices that are made to take long.

use super::*;

fn distinct_devices(count: i64) -> Value {
    (0..count).map(|index| device(&format!("d{index:03}"), &format!("m{index}"), index, 0)).collect()
}

#[test]
fn a_search_that_takes_too_long_is_stopped() {
    // Ten requests for nine devices, all different: every order of them is tried.
    let mut world = World::new(&[slice("s", distinct_devices(9))]);
    world.checks = Some(20_000);
    let requests: Value = (0..10).map(|index| request(&format!("r{index}"), json!({}))).collect();
    assert_eq!(world.outcome(&[claim(requests)]), "error: timed out trying to allocate devices");
}

#[test]
fn devices_that_are_alike_are_tried_once() {
    let alike: Value = (0..100).map(|index| device(&format!("d{index:03}"), "m", 0, 0)).collect();
    let mut world = World::new(&[slice("s", alike)]);
    // Without that, there are more ways than atoms in the universe to choose 30 of 100.
    world.checks = Some(5_000);
    let impossible = cel(&format!("device.attributes['{DRIVER}'].model == 'none'"));
    let requests = json!([request("r", json!({"count": 30})), request("s", json!({"selectors": [impossible]}))]);
    assert_eq!(world.outcome(&[claim(requests)]), "none");
    let many: Value = (0..30).map(|index| request(&format!("r{index}"), json!({}))).collect();
    let claims: Vec<Value> = (0..4).map(|_| claim(many.clone())).collect();
    assert_eq!(world.outcome(&claims), "none");
}

#[test]
fn many_claims_do_not_exhaust_the_stack() {
    let world = World::new(&[slice("s", distinct_devices(1))]);
    // Each claim sees the device without using it up.
    let one = claim(json!([request("r", json!({"adminAccess": true}))]));
    let claims: Vec<Value> = (0..20_000).map(|_| one.clone()).collect();
    let outcome = std::thread::Builder::new().stack_size(256 * 1024);
    let outcome = outcome.spawn(move || world.allocate(&claims).map(|found| found.map(|all| all.len()))).unwrap();
    assert_eq!(outcome.join().unwrap(), Ok(Some(20_000)));
}

#[test]
fn an_expensive_selector_is_an_error() {
    let world = World::new(&[slice("s", distinct_devices(1))]);
    let endless = cel("lists.range(100000).all(a, lists.range(100000).all(b, true))");
    assert_eq!(
        world.outcome(&[claim(json!([request("r", json!({"selectors": [endless]}))]))]),
        "error: claim n/c: selector #0: CEL runtime error: operation cancelled: actual cost limit exceeded"
    );
}

#[test]
fn contradicting_slices_are_not_used() {
    for devices in [
        json!([{"name": "x", "attributes": {"a": {}}}]),
        json!([{"name": "x", "attributes": {"a": {"version": "one"}}}]),
        json!([{"name": "x", "attributes": {"a": {"strings": ["x"]}}}]),
    ] {
        let found = World::new(&[slice("s", devices.clone())]).outcome(&[claim(json!([request("r", json!({}))]))]);
        assert!(
            found.starts_with("error: class gpu: selector #0: CEL runtime error: attribute a: "),
            "{devices}: {found}"
        );
    }
    // A negative amount is less than any request, and one that no number holds counts as the largest.
    for (amounts, expected) in [(["-1", "-9e99", "1"], "r=z"), (["-1", "9e99", "1"], "r=y")] {
        let devices = ["x", "y", "z"].into_iter().zip(amounts);
        let devices = devices.map(|(name, amount)| json!({"name": name, "capacity": {"m": {"value": amount}}}));
        let world = World::new(&[slice("s", devices.collect::<Vec<_>>().into())]);
        let asks = claim(json!([request("r", json!({"capacity": {"requests": {"m": "1"}}}))]));
        assert_eq!(world.outcome(&[asks]), expected, "{amounts:?}");
    }
}
