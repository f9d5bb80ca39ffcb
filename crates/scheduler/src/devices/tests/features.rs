//! Each feature of claims and slices.

use super::*;

fn four() -> Value {
    json!([device("a", "small", 0, 0), device("b", "big", 1, 0), device("c", "big", 2, 1), device("d", "small", 3, 1)])
}

fn model(name: &str) -> Value {
    cel(&format!("device.attributes['{DRIVER}'].model == '{name}'"))
}

#[test]
fn requests_get_the_first_devices_that_match() {
    let world = World::new(&[slice("s", four())]);
    let big = json!({"selectors": [model("big")]});
    let memory =
        |amount: &str| cel(&format!("device.capacity['{DRIVER}'].memory.compareTo(quantity('{amount}')) >= 0"));
    for (requests, expected) in [
        (json!([request("r", json!({}))]), "r=a"),
        (json!([request("r", json!({"count": 3}))]), "r=a r=b r=c"),
        (json!([request("r", json!({"count": 5}))]), "none"),
        (json!([request("r", big.clone())]), "r=b"),
        (json!([request("x", json!({})), request("y", big.clone()), request("z", big.clone())]), "x=a y=b z=c"),
        // The first request would like any device, but the second one needs both big ones.
        (
            json!([request("x", json!({"count": 2})), request("y", json!({"count": 2, "selectors": [model("big")]}))]),
            "x=a x=d y=b y=c",
        ),
        (json!([request("r", json!({"allocationMode": "All", "selectors": [model("big")]}))]), "r=b r=c"),
        (json!([request("r", json!({"allocationMode": "All", "selectors": [model("none")]}))]), "none"),
        (json!([request("r", json!({"allocationMode": "All"})), request("s", json!({}))]), "none"),
        (json!([request("r", json!({"selectors": [memory("40Gi")]}))]), "r=a"),
        (json!([request("r", json!({"selectors": [memory("41Gi")]}))]), "none"),
        (
            json!([{"name": "r", "firstAvailable": [
                {"name": "huge", "deviceClassName": "gpu", "selectors": [model("huge")]},
                {"name": "two", "deviceClassName": "gpu", "count": 2, "selectors": [model("big")]}]}]),
            "r/two=b r/two=c",
        ),
        // Both lists prefer the same devices: the second one gets its second choice.
        (
            json!([{"name": "r", "firstAvailable": [{"name": "big", "deviceClassName": "gpu", "count": 2, "selectors": [model("big")]}]},
                {"name": "s", "firstAvailable": [{"name": "big", "deviceClassName": "gpu", "selectors": [model("big")]},
                    {"name": "any", "deviceClassName": "gpu"}]}]),
            "r/big=b r/big=c s/any=a",
        ),
        (
            json!([request("r", json!({"count": 33}))]),
            "error: claim n/c: number of requested devices 33 exceeds the claim limit of 32",
        ),
        (
            json!([request("r", json!({"deviceClassName": "no"}))]),
            "error: claim n/c, request r: could not retrieve device class no: deviceclass.resource.k8s.io \"no\" not found",
        ),
        (
            json!([request("r", json!({"allocationMode": "Some"}))]),
            "error: claim n/c, request r: unsupported count mode Some",
        ),
        (json!([{"name": "r"}]), "error: resource claim n/c, request r: unknown request type"),
        (
            json!([request("r", json!({"selectors": [{}]}))]),
            "error: claim n/c, request r, selector #0: CEL expression empty (unsupported selector type?)",
        ),
        (
            json!([request("r", json!({"selectors": [cel("device.attributes['other'].x")]}))]),
            "error: claim n/c: selector #0: CEL runtime error: no such key: x",
        ),
    ] {
        assert_eq!(world.outcome(&[claim(requests.clone())]), expected, "{requests}");
    }
    let broken = world.outcome(&[claim(json!([request("r", json!({"selectors": [cel("1 +")]}))]))]);
    assert!(broken.starts_with("error: claim n/c: selector #0: CEL compile error: compilation failed"), "{broken}");
}

#[test]
fn claims_of_a_pod_share_no_device() {
    let mut world = World::new(&[slice("s", four())]);
    let one = claim(json!([request("r", json!({}))]));
    assert_eq!(world.outcome(&[one.clone(), one.clone()]), "r=a | r=b");
    world.take(&[one.clone(), one.clone()]);
    assert_eq!(world.outcome(&[one.clone(), one.clone()]), "r=c | r=d");
    assert_eq!(world.outcome(&[one.clone(), one.clone(), one.clone()]), "none");
    // Administrators see devices of others, each once in a claim.
    let admin = claim(json!([request("r", json!({"adminAccess": true, "allocationMode": "All"}))]));
    assert_eq!(world.outcome(std::slice::from_ref(&admin)), "r=a r=b r=c r=d");
    let twice = claim(json!([
        request("r", json!({"adminAccess": true, "count": 4})),
        request("s", json!({"adminAccess": true}))
    ]));
    assert_eq!(world.outcome(&[twice]), "none");
    world.take(&[admin]);
    assert_eq!(world.outcome(&[one.clone(), one]), "r=c | r=d");
}

#[test]
fn constraints_hold_for_all_devices() {
    let world = World::new(&[slice("s", four())]);
    let constrained =
        |constraint: Value, requests: Value| with(claim(requests), "/spec/devices/constraints", json!([constraint]));
    let numa = json!({"matchAttribute": "example.com/numa"});
    let own = json!({"matchAttribute": format!("{DRIVER}/model")});
    let distinct = json!({"distinctAttribute": "example.com/numa"});
    let two = json!([request("r", json!({"count": 2}))]);
    for (claim, expected) in [
        (
            constrained(
                numa.clone(),
                json!([request("r", json!({"selectors": [model("big")]})), request("s", json!({}))]),
            ),
            "r=b s=a",
        ),
        (constrained(own.clone(), two.clone()), "r=a r=d"),
        (constrained(own, json!([request("r", json!({"count": 3}))])), "none"),
        (constrained(distinct.clone(), two.clone()), "r=a r=c"),
        (constrained(distinct, json!([request("r", json!({"count": 3}))])), "none"),
        (constrained(json!({"matchAttribute": "example.com/none"}), two.clone()), "none"),
        (constrained(json!({"matchAttribute": "example.com/numa", "requests": ["s"]}), two.clone()), "r=a r=b"),
        (
            constrained(numa, json!([request("r", json!({"allocationMode": "All"}))])),
            "error: claim n/c, request r: cannot add device gpu.example.com/one/c because a claim constraint would not be satisfied",
        ),
        (
            constrained(json!({}), two),
            "error: claim n/c, constraint #0: empty constraint (unsupported constraint type?)",
        ),
    ] {
        assert_eq!(world.outcome(std::slice::from_ref(&claim)), expected, "{claim}");
    }
}

#[test]
fn taints_keep_requests_out() {
    let taint = |effect: &str| json!([{"key": "k", "value": "v", "effect": effect}]);
    let world = World::new(&[slice(
        "s",
        json!([
            with(device("a", "m", 0, 0), "/taints", taint("NoSchedule")),
            with(device("b", "m", 0, 0), "/taints", taint("NoExecute")),
            with(device("c", "m", 0, 0), "/taints", taint("None"))
        ]),
    )]);
    for (tolerations, expected) in [
        (json!([]), "r=c"),
        (json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]), "r=a"),
        (json!([{"key": "k", "value": "v", "effect": "NoExecute"}]), "r=b"),
        (json!([{"key": "k", "value": "w"}]), "r=c"),
        (json!([{"operator": "Exists"}]), "r=a"),
    ] {
        let asks = claim(json!([request("r", json!({"tolerations": tolerations}))]));
        assert_eq!(world.outcome(&[asks]), expected, "{tolerations}");
    }
}

#[test]
fn pools_are_used_when_they_are_complete_and_for_the_node() {
    let pool = |name: &str, generation: i64, count: i64| json!({"name": name, "generation": generation, "resourceSliceCount": count});
    let of = |name: &str, device_name: &str, pool: Value| {
        with(slice(name, json!([device(device_name, "m", 0, 0)])), "/spec/pool", pool)
    };
    let elsewhere = |slice: Value| with(slice, "/spec/nodeName", json!("two"));
    let selector = |zone: &str| json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]});
    let unbound = |mut slice: Value, field: &str, value: Value| {
        slice["spec"].as_object_mut().unwrap().remove("nodeName");
        slice["spec"][field] = value;
        slice
    };
    let per_device = {
        let mut slice = unbound(
            slice("p", json!([device("x", "m", 0, 0), device("y", "m", 0, 0)])),
            "perDeviceNodeSelection",
            json!(true),
        );
        slice["spec"]["devices"][0]["nodeName"] = "two".into();
        slice["spec"]["devices"][1]["allNodes"] = true.into();
        slice
    };
    let conditioned = with(
        with(slice("a", json!([device("x", "m", 0, 0)])), "/spec/pool", pool("a", 1, 1)),
        "/spec/devices/0/bindingConditions",
        json!(["Ready"]),
    );
    for (slices, expected, all) in [
        (vec![], "none", "none"),
        (vec![elsewhere(of("s", "x", pool("p", 1, 1)))], "none", "none"),
        (
            vec![of("s", "x", pool("p", 1, 2))],
            "none",
            "error: claim n/c, request r: asks for all devices, but resource pool gpu.example.com/p is currently being updated",
        ),
        (vec![of("s", "x", pool("p", 1, 2)), of("t", "y", pool("p", 1, 2))], "r=p/x", "r=p/x r=p/y"),
        // The rest of the pool is for another node.
        (vec![of("s", "x", pool("p", 1, 2)), elsewhere(of("t", "y", pool("p", 1, 2)))], "r=p/x", "r=p/x"),
        (vec![of("s", "x", pool("p", 1, 1)), of("t", "y", pool("p", 2, 1))], "r=p/y", "r=p/y"),
        (
            vec![of("s", "x", pool("p", 1, 1)), of("t", "y", pool("p", 2, 2))],
            "none",
            "error: claim n/c, request r: asks for all devices, but resource pool gpu.example.com/p is currently being updated",
        ),
        (
            vec![of("s", "x", pool("p", 1, 2)), of("t", "x", pool("p", 1, 2))],
            "error: invalid resource pools were encountered",
            "error: claim n/c, request r: asks for all devices, but resource pool gpu.example.com/p is currently invalid",
        ),
        (vec![of("s", "x", pool("q", 1, 1)), of("t", "y", pool("p", 1, 1))], "r=p/y", "r=p/y r=q/x"),
        (vec![unbound(of("s", "x", pool("p", 1, 1)), "allNodes", json!(true))], "r=p/x", "r=p/x"),
        (vec![unbound(of("s", "x", pool("p", 1, 1)), "nodeSelector", selector("a"))], "r=p/x", "r=p/x"),
        (vec![unbound(of("s", "x", pool("p", 1, 1)), "nodeSelector", selector("b"))], "none", "none"),
        (vec![per_device], "r=y", "r=y"),
        (vec![conditioned, of("t", "y", pool("b", 1, 1))], "r=b/y", "r=b/y r=a/x"),
    ] {
        let world = World::new(&slices);
        assert_eq!(world.outcome(&[claim(json!([request("r", json!({}))]))]), expected, "{slices:?}");
        let everything = claim(json!([request("r", json!({"allocationMode": "All"}))]));
        assert_eq!(world.outcome(&[everything]), all, "{slices:?}");
    }
}

#[test]
fn partitions_share_the_counters_of_their_device() {
    let part = |name: &str, amount: &str| json!({"name": name, "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": amount}}}]});
    let both = |slice: Value| with(slice, "/spec/pool/resourceSliceCount", json!(2));
    let counters = both(with(
        slice("counters", json!(null)),
        "/spec/sharedCounters",
        json!([{"name": "card", "counters": {"memory": {"value": "40Gi"}}}]),
    ));
    let devices = both(slice(
        "devices",
        json!([part("whole", "40Gi"), part("left", "20Gi"), part("right", "20Gi"), part("small", "10Gi")]),
    ));
    let mut world = World::new(&[counters.clone(), devices]);
    let one = |names: &[&str]| {
        let _ = names;
        claim(json!([request("r", json!({}))]))
    };
    assert_eq!(world.outcome(&[one(&[])]), "r=whole");
    assert_eq!(world.outcome(&[claim(json!([request("r", json!({"count": 2}))]))]), "r=left r=right");
    assert_eq!(world.outcome(&[claim(json!([request("r", json!({"count": 3}))]))]), "none");
    world.take(&[claim(json!([request("r", json!({"count": 2}))]))]);
    assert_eq!(world.outcome(&[one(&[])]), "none");
    let unknown =
        both(slice("devices", json!([{"name": "x", "consumesCounters": [{"counterSet": "no", "counters": {}}]}])));
    assert_eq!(World::new(&[counters, unknown]).outcome(&[one(&[])]), "error: invalid resource pools were encountered");
}

#[test]
fn devices_with_capacity_are_shared() {
    let mut shared = device("a", "m", 0, 0);
    shared["allowMultipleAllocations"] = true.into();
    shared["capacity"]["memory"]["requestPolicy"] =
        json!({"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}});
    let mut world = World::new(&[slice("s", json!([shared, device("b", "m", 0, 0)]))]);
    let asks = |amount: &str| claim(json!([request("r", json!({"capacity": {"requests": {"memory": amount}}}))]));
    let taken = world.allocate(&[asks("15500Mi")]).unwrap().unwrap();
    let result = taken[0].devices.as_ref().unwrap().results.as_ref().unwrap()[0].clone();
    assert_eq!(result.consumed_capacity.unwrap()["memory"].0, "16Gi");
    assert_eq!(result.share_id.as_deref(), Some("share-1"));
    world.take(&[asks("16Gi"), asks("16Gi")]);
    assert_eq!(world.outcome(&[asks("8Gi")]), "r=a");
    assert_eq!(world.outcome(&[asks("9Gi")]), "r=b");
    assert_eq!(world.outcome(&[asks("41Gi")]), "none");
    assert_eq!(
        world.outcome(&[claim(json!([request("r", json!({"capacity": {"requests": {"none": "1"}}}))]))]),
        "none"
    );
    world.take(&[asks("8Gi")]);
    assert_eq!(world.outcome(&[asks("1Gi")]), "r=b");
}

#[test]
fn results_have_what_drivers_and_schedulers_need() {
    let mut world = World::new(&[slice("s", four())]);
    let parameters = |value: i64| json!({"driver": DRIVER, "parameters": {"value": value}});
    world.add_class("gpu", json!({"config": [{"opaque": parameters(1)}]}));
    let mut asks = claim(json!([
        request("r", json!({"tolerations": [{"operator": "Exists"}]})),
        request("s", json!({"adminAccess": true}))
    ]));
    asks["spec"]["devices"]["config"] = json!([{"opaque": parameters(2)}, {"requests": ["s"], "opaque": parameters(3)}, {"requests": ["t"], "opaque": parameters(4)}]);
    let result = serde_json::to_value(&world.allocate(&[asks]).unwrap().unwrap()[0]).unwrap();
    let device =
        |request: &str, device: &str| json!({"request": request, "driver": DRIVER, "pool": "one", "device": device});
    let mut tolerating = device("r", "a");
    tolerating["tolerations"] = json!([{"operator": "Exists"}]);
    let mut admin = device("s", "b");
    admin["adminAccess"] = true.into();
    assert_eq!(
        result,
        json!({
            "devices": {
                "results": [tolerating, admin],
                "config": [
                    {"source": "FromClass", "requests": ["r", "s"], "opaque": parameters(1)},
                    {"source": "FromClaim", "opaque": parameters(2)},
                    {"source": "FromClaim", "requests": ["s"], "opaque": parameters(3)},
                ],
            },
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["one"]}]}]},
        })
    );
}
