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

const NEEDED: &str = "when session affinity type is ClientIP";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                         alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                         '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// The errors of a service with a port, without `spec.`.
fn found(fields: &Value) -> Vec<String> {
    let mut spec = json!({"ports": [{"port": 80}]});
    for (name, value) in fields.as_object().into_iter().flatten() {
        spec[name] = value.clone();
    }
    let relative = |message: String| message.strip_prefix("spec.").map_or(message.clone(), str::to_owned);
    messages(&Service, &service(spec), None).into_iter().map(relative).collect()
}

#[test]
fn ports_are_checked() {
    for (ports, expected) in [
        (json!([{"port": 80, "name": "a"}, {"port": 80, "name": "b", "protocol": "UDP"}]), vec![]),
        (json!([{"port": 80}, {"port": 81, "name": "b"}]), vec!["ports[0].name: Required value".to_owned()]),
        (
            json!([{"port": 80, "name": "a"}, {"port": 81, "name": "a"}]),
            vec!["ports[1].name: Duplicate value: \"a\"".to_owned()],
        ),
        (
            json!([{"port": 80, "protocol": "ICMP"}]),
            vec![
                "ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\""
                    .to_owned(),
            ],
        ),
        (
            json!([{"port": 80, "targetPort": 65536}]),
            vec!["ports[0].targetPort: Invalid value: 65536: must be between 1 and 65535, inclusive".to_owned()],
        ),
        (
            json!([{"port": 80, "appProtocol": "a b"}]),
            vec![format!("ports[0].appProtocol: Invalid value: \"a b\": {QUALIFIED}")],
        ),
    ] {
        assert_eq!(found(&json!({"ports": ports.clone()})), expected, "{ports}");
    }
    let repeated = json!({"type": "NodePort", "ports": [
        {"port": 80, "name": "a", "nodePort": 30000}, {"port": 81, "name": "b", "nodePort": 30000}]});
    assert_eq!(found(&repeated), ["ports[1].nodePort: Duplicate value: 30000"]);
}

#[test]
fn session_affinity_is_checked() {
    let config = |fields: serde_json::Value| json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": fields});
    for (spec, expected) in [
        (json!({"sessionAffinity": "ClientIP"}), vec![]),
        (config(json!({"clientIP": {"timeoutSeconds": 86_400}})), vec![]),
        (
            config(json!({"clientIP": {"timeoutSeconds": 86_401}})),
            vec![
                "sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than 0 and less than \
                 86400"
                    .to_owned(),
            ],
        ),
        (
            config(json!({"clientIP": {"timeoutSeconds": 0}})),
            vec![
                "sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0: must be greater than 0 and less than 86400"
                    .to_owned(),
            ],
        ),
        // The default drops what would be refused.
        (json!({"sessionAffinity": "None", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}}), vec![]),
        (
            json!({"sessionAffinity": "Cookie"}),
            vec!["sessionAffinity: Unsupported value: \"Cookie\": supported values: \"ClientIP\", \"None\"".to_owned()],
        ),
    ] {
        assert_eq!(found(&spec), expected, "{spec}");
    }
    let mut bare = service(json!({"ports": [{"port": 80}], "sessionAffinity": "ClientIP"}));
    bare["spec"]["sessionAffinityConfig"] = json!({"clientIP": {}});
    let mut configured = bare.clone();
    configured["spec"]["sessionAffinity"] = json!("None");
    let detail = "must not be set when session affinity is None";
    assert_eq!(messages(&Service, &configured, None), [format!("spec.sessionAffinityConfig: Forbidden: {detail}")]);
    let path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    assert_eq!(messages(&Service, &bare, None), [format!("{path}: Required value: {NEEDED}")]);
}

#[test]
fn cluster_ips_are_checked() {
    for (spec, expected) in [
        (json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": []}), vec![]),
        (json!({"clusterIP": "10.0.0.1"}), vec!["clusterIPs: Required value"]),
        (
            json!({"clusterIPs": ["10.0.0.1"]}),
            vec!["clusterIPs: Invalid value: [\"10.0.0.1\"]: must be empty when `clusterIP` is not specified"],
        ),
        (
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.2"]}),
            vec!["clusterIPs: Invalid value: [\"10.0.0.2\"]: first value must match `clusterIP`"],
        ),
        (
            json!({"clusterIP": "None", "clusterIPs": ["None", "10.0.0.1"]}),
            vec!["clusterIPs: Invalid value: [\"None\",\"10.0.0.1\"]: 'None' must be the first and only value"],
        ),
        (
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "10.0.0.2"]}),
            vec![
                "clusterIPs: Invalid value: [\"10.0.0.1\",\"10.0.0.2\"]: may specify no more than one IP for each IP family",
            ],
        ),
        (
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv6"]}),
            vec!["clusterIPs[0]: Invalid value: \"10.0.0.1\": expected an IPv6 value as indicated by `ipFamilies[0]`"],
        ),
        (
            json!({"ipFamilies": ["IPv4", "IPv4", "IPX"]}),
            vec![
                "ipFamilies[1]: Duplicate value: \"IPv4\"",
                "ipFamilies[2]: Unsupported value: \"IPX\": supported values: \"IPv4\", \"IPv6\"",
            ],
        ),
        (
            json!({"ipFamilyPolicy": "AnyStack"}),
            vec![
                "ipFamilyPolicy: Unsupported value: \"AnyStack\": supported values: \"PreferDualStack\", \
                 \"RequireDualStack\", \"SingleStack\"",
            ],
        ),
        (
            json!({"type": "NodePort", "clusterIP": "None", "clusterIPs": ["None"]}),
            vec!["clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services"],
        ),
        (
            json!({"type": "ExternalName", "externalName": "a.b.", "ipFamilyPolicy": "SingleStack"}),
            vec!["ipFamilyPolicy: Forbidden: may not be set for ExternalName services"],
        ),
    ] {
        assert_eq!(found(&spec), expected, "{spec}");
    }
}

#[test]
fn balancers_and_traffic_are_checked() {
    let balanced = |fields: serde_json::Value| {
        let mut spec = json!({"type": "LoadBalancer"});
        for (name, value) in fields.as_object().into_iter().flatten() {
            spec[name] = value.clone();
        }
        spec
    };
    for (spec, expected) in [
        (balanced(json!({"loadBalancerClass": "a.b/c", "loadBalancerSourceRanges": [" 10.0.0.0/8 "]})), vec![]),
        (
            balanced(json!({"loadBalancerSourceRanges": ["10.0.0.1/8"]})),
            vec![
                "LoadBalancerSourceRanges[0]: Invalid value: \"10.0.0.1/8\": must not have bits set beyond the prefix length"
                    .to_owned(),
            ],
        ),
        (
            json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]}),
            vec!["LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'".to_owned()],
        ),
        (
            json!({"allocateLoadBalancerNodePorts": true}),
            vec!["allocateLoadBalancerNodePorts: Forbidden: may only be used when `type` is 'LoadBalancer'".to_owned()],
        ),
        (
            balanced(json!({"loadBalancerClass": "a b"})),
            vec![format!("loadBalancerClass: Invalid value: \"a b\": {QUALIFIED}")],
        ),
        (
            balanced(json!({"externalTrafficPolicy": "Near"})),
            vec!["externalTrafficPolicy: Unsupported value: \"Near\": supported values: \"Cluster\", \"Local\"".to_owned()],
        ),
        (
            balanced(json!({"externalTrafficPolicy": "Local"})),
            vec!["healthCheckNodePort: Required value".to_owned()],
        ),
        (
            balanced(json!({"healthCheckNodePort": 30000})),
            vec![
                "healthCheckNodePort: Invalid value: 30000: may only be set when `type` is 'LoadBalancer' and \
                 `externalTrafficPolicy` is 'Local'"
                    .to_owned(),
            ],
        ),
        (
            json!({"internalTrafficPolicy": "Near"}),
            vec!["internalTrafficPolicy: Unsupported value: \"Near\": supported values: \"Cluster\", \"Local\"".to_owned()],
        ),
        (
            json!({"trafficDistribution": "Anywhere"}),
            vec![
                "trafficDistribution: Unsupported value: \"Anywhere\": supported values: \"PreferClose\", \
                 \"PreferSameZone\", \"PreferSameNode\""
                    .to_owned(),
            ],
        ),
    ] {
        assert_eq!(found(&spec), expected, "{spec}");
    }
}

#[test]
fn statuses_of_balancers_are_checked() {
    let old = service(json!({"type": "LoadBalancer", "ports": [{"port": 80}]}));
    for (ingress, expected) in [
        (json!({"ip": "10.0.0.1", "ipMode": "VIP"}), vec![]),
        (json!({"hostname": "a.b"}), vec![]),
        (json!({"ip": "10.0.0.1"}), vec!["ipMode: Required value: must be specified when `ip` is set"]),
        (json!({"ipMode": "VIP"}), vec!["ipMode: Forbidden: may not be specified when `ip` is not set"]),
        (
            json!({"ip": "10.0.0.1", "ipMode": "Magic"}),
            vec!["ipMode: Unsupported value: \"Magic\": supported values: \"Proxy\", \"VIP\""],
        ),
        (
            json!({"hostname": "10.0.0.1"}),
            vec!["hostname: Invalid value: \"10.0.0.1\": must be a DNS name, not an IP address"],
        ),
    ] {
        let mut new = old.clone();
        new["status"] = json!({"loadBalancer": {"ingress": [ingress.clone()]}});
        let expected: Vec<String> =
            expected.iter().map(|message| format!("status.loadBalancer.ingress[0].{message}")).collect();
        assert_eq!(crate::testing::messages_of(&Service, &new, Some(&old), "status"), expected, "{ingress}");
    }
}
