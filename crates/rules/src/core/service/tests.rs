//! Tests of the rules of services, with services as clients send them.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Service;
use crate::kind::KindRules;
use crate::testing::{context, defaulted, messages};

fn service(spec: Value) -> Value {
    defaulted(&Service, json!({"metadata": {"name": "s", "namespace": "n"}, "spec": spec}))
}

#[test]
fn services_are_filled_in() {
    let service = service(json!({"ports": [{"port": 80}], "selector": {"a": "b"}}));
    assert_eq!(
        service["spec"],
        json!({
            "internalTrafficPolicy": "Cluster", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
            "selector": {"a": "b"}, "sessionAffinity": "None", "type": "ClusterIP",
        })
    );
    let balanced = self::service(json!({"type": "LoadBalancer", "ports": [], "sessionAffinity": "ClientIP"}));
    assert_eq!(balanced["spec"]["allocateLoadBalancerNodePorts"], true);
    assert_eq!(balanced["spec"]["externalTrafficPolicy"], "Cluster");
    assert_eq!(balanced["spec"]["sessionAffinityConfig"], json!({"clientIP": {"timeoutSeconds": 10800}}));
}

#[test]
fn services_are_checked() {
    let port = json!([{"port": 80}]);
    for (spec, expected) in [
        (json!({"ports": port}), vec![]),
        (json!({}), vec!["spec.ports: Required value"]),
        (
            json!({"ports": port, "type": "Near"}),
            vec![
                "spec.type: Unsupported value: \"Near\": supported values: \"ClusterIP\", \"ExternalName\", \
             \"LoadBalancer\", \"NodePort\"",
            ],
        ),
        (json!({"type": "ExternalName"}), vec!["spec.externalName: Required value"]),
        (
            json!({"ports": [{"port": 0}]}),
            vec![
                "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
            ],
        ),
        (
            json!({"ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]}),
            vec![
                "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":80,\
             \"TargetPort\":0,\"NodePort\":0}",
            ],
        ),
        (
            json!({"ports": [{"port": 80, "nodePort": 30000}]}),
            vec!["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
        ),
        (
            json!({"ports": port, "clusterIP": "1.2.3", "clusterIPs": ["1.2.3"]}),
            vec![
                "spec.clusterIPs[0]: Invalid value: \"1.2.3\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ],
        ),
        (
            json!({"ports": port, "externalIPs": ["127.0.0.1"]}),
            vec![
                "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
            ],
        ),
        (
            json!({"ports": port, "externalTrafficPolicy": "Local"}),
            vec![
                "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
            ],
        ),
        (
            json!({"ports": port, "loadBalancerClass": "a/b"}),
            vec!["spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'"],
        ),
    ] {
        assert_eq!(messages(&Service, &service(spec.clone()), None), expected, "{spec}");
    }
}

#[test]
fn given_values_are_kept() {
    let old = service(json!({
        "type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
        "ports": [{"port": 80, "nodePort": 30080}], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
    }));
    let mut new = service(json!({"type": "NodePort", "ports": [{"port": 81}]}));
    Service.prepare_update(&mut new, &old, &context("v1"));
    assert_eq!(new["spec"]["clusterIPs"], json!(["10.0.0.1"]));
    assert_eq!(new["spec"]["ports"][0]["nodePort"], 30080);
    let mut plain = old.clone();
    plain["spec"]["type"] = json!("ClusterIP");
    plain["spec"].as_object_mut().unwrap().remove("externalTrafficPolicy");
    Service.prepare_update(&mut plain, &old, &context("v1"));
    assert_eq!(plain["spec"]["ports"][0].get("nodePort"), None);
    assert!(messages(&Service, &plain, Some(&old)).is_empty());
}

#[test]
fn addresses_are_set_once() {
    let old = service(json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80}]}));
    let mut new = old.clone();
    new["spec"]["clusterIP"] = json!("10.0.0.2");
    new["spec"]["clusterIPs"] = json!(["10.0.0.2"]);
    assert_eq!(
        messages(&Service, &new, Some(&old)),
        ["spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"]
    );
}

#[test]
fn rows_show_addresses_and_ports() {
    let mut service = service(json!({
        "type": "LoadBalancer", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80, "nodePort": 30080}], "selector": {"a": "b"},
    }));
    let cells = |service: &Value| Service.cells(service, Timestamp::UNIX_EPOCH);
    assert_eq!(cells(&service)[3], "<pending>");
    service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}});
    assert_eq!(
        cells(&service)[1..5],
        [json!("LoadBalancer"), json!("10.0.0.1"), json!("1.2.3.4"), json!("80:30080/TCP")]
    );
    assert_eq!(cells(&service)[6], "a=b");
}
