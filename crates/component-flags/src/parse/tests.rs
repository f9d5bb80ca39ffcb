use super::*;

fn line(component: Component, text: &str) -> Result<CommandLine, ParseError> {
    parse(component, &text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
}

fn values(component: Component, text: &str, name: &str) -> Vec<String> {
    match line(component, text) {
        Ok(CommandLine::Run(given)) => given.values(name),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn values_are_read_as_pflag_reads_them() {
    use Component::{ApiServer, ControllerManager, Kubelet, Proxy};
    for (component, text, name, expected) in [
        (ApiServer, "", "secure-port", &["6443"][..]),
        (ApiServer, "--secure-port 1", "secure-port", &["1"]),
        (ApiServer, "--secure-port=1 --secure-port=2", "secure-port", &["2"]),
        (ApiServer, "--secure_port=0x10", "secure-port", &["16"]),
        (ApiServer, "--allow-privileged", "allow-privileged", &["true"]),
        (ApiServer, "--allow-privileged=F", "allow-privileged", &["false"]),
        // A boolean does not consume the next word.
        (ApiServer, "--allow-privileged --v 3", "v", &["3"]),
        (ApiServer, "-v=4", "v", &["4"]),
        (ApiServer, "-v4", "v", &["4"]),
        (ApiServer, "-v 4", "v", &["4"]),
        (ApiServer, "--etcd-servers=a,b --etcd-servers=c", "etcd-servers", &["a", "b", "c"]),
        (ApiServer, "--etcd-servers=", "etcd-servers", &[]),
        (ApiServer, "--service-account-issuer=a,b --service-account-issuer=c", "service-account-issuer", &["a,b", "c"]),
        (ControllerManager, "", "controllers", &["*"]),
        (ControllerManager, "--controllers=*,-nodeipam", "controllers", &["*", "-nodeipam"]),
        (ApiServer, "--runtime-config=api/all=true,apps/v1", "runtime-config", &["api/all=true", "apps/v1="]),
        (ApiServer, "--feature-gates=A=true,kube:B=false", "feature-gates", &[":A=true", "kube:B=false"]),
        (ApiServer, "--allow-metric-labels=a,b=c", "allow-metric-labels", &["a,b=c"]),
        (ApiServer, "--oidc-required-claim=a=b,c=d", "oidc-required-claim", &["a=b,c=d"]),
        (ApiServer, "--service-node-port-range=30000+10", "service-node-port-range", &["30000-30010"]),
        (ApiServer, "--event-ttl=1h30m", "event-ttl", &["1h30m0s"]),
        (Kubelet, "--node-labels=a=b,c", "node-labels", &["a=b", "c="]),
        (
            Kubelet,
            "--eviction-hard=memory.available<1Gi,nodefs.available<5%",
            "eviction-hard",
            &["memory.available<1Gi", "nodefs.available<5%"],
        ),
        (Kubelet, "--feature-gates=A=T", "feature-gates", &["A=true"]),
        (
            Kubelet,
            "--register-with-taints=a=b:NoSchedule,c:NoExecute",
            "register-with-taints",
            &["a=b:NoSchedule", "c:NoExecute"],
        ),
        (Kubelet, "--reserved-memory=0:memory=1Gi;1:memory=2Gi", "reserved-memory", &["0:memory=1Gi", "1:memory=2Gi"]),
        (Proxy, "--healthz-bind-address=[::]:1", "healthz-bind-address", &["[::]:1"]),
        (Proxy, "--proxy-mode=nftables", "proxy-mode", &["nftables"]),
    ] {
        assert_eq!(values(component, text, name), expected, "{text}");
    }
}

/// The messages are those of the programs of v1.36.
#[test]
fn wrong_command_lines_are_refused_with_kubernetes_messages() {
    use Component::{ApiServer, ControllerManager, Kubelet, Proxy};
    for (component, text, message) in [
        (ApiServer, "--foo", "unknown flag: --foo"),
        (ApiServer, "-x", "unknown shorthand flag: 'x' in -x"),
        (ApiServer, "--=x", "bad flag syntax: --=x"),
        (ApiServer, "---x", "bad flag syntax: ---x"),
        (ApiServer, "--secure-port", "flag needs an argument: --secure-port"),
        (ApiServer, "--v", "flag needs an argument: --v"),
        (ApiServer, "-v", "flag needs an argument: 'v' in -v"),
        (ApiServer, "foo", "\"kube-apiserver\" does not take any arguments, got [\"foo\"]"),
        (Proxy, "a -- b", "\"kube-proxy\" does not take any arguments, got [\"a\" \"b\"]"),
        (Kubelet, "foo", "unknown command foo"),
        (
            ApiServer,
            "--secure-port=x",
            "invalid argument \"x\" for \"--secure-port\" flag: strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
        (
            ApiServer,
            "--advertise-address=x",
            "invalid argument \"x\" for \"--advertise-address\" flag: failed to parse IP: \"x\"",
        ),
        (
            ApiServer,
            "--allow-privileged=maybe",
            "invalid argument \"maybe\" for \"--allow-privileged\" flag: strconv.ParseBool: parsing \"maybe\": invalid syntax",
        ),
        (
            ApiServer,
            "--event-ttl=5",
            "invalid argument \"5\" for \"--event-ttl\" flag: time: missing unit in duration \"5\"",
        ),
        (
            ApiServer,
            "--oidc-required-claim=a",
            "invalid argument \"a\" for \"--oidc-required-claim\" flag: malformed pair, expect string=string",
        ),
        (
            ApiServer,
            "--goaway-chance=x",
            "invalid argument \"x\" for \"--goaway-chance\" flag: strconv.ParseFloat: parsing \"x\": invalid syntax",
        ),
        (
            ApiServer,
            "--log-json-info-buffer-size=x",
            "invalid argument \"x\" for \"--log-json-info-buffer-size\" flag: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            ApiServer,
            "--service-node-port-range=x",
            "invalid argument \"x\" for \"--service-node-port-range\" flag: strconv.Atoi: parsing \"x\": invalid syntax",
        ),
        (
            ApiServer,
            "--tls-curve-preferences=x",
            "invalid argument \"x\" for \"--tls-curve-preferences\" flag: strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
        (
            ApiServer,
            "--tls-sni-cert-key=x",
            "invalid argument \"x\" for \"--tls-sni-cert-key\" flag: expected comma separated certificate and key file paths",
        ),
        (
            ApiServer,
            "-v=x",
            "invalid argument \"x\" for \"-v, --v\" flag: strconv.ParseUint: parsing \"x\": invalid syntax",
        ),
        (
            ApiServer,
            "-vx",
            "invalid argument \"x\" for \"-v, --v\" flag: strconv.ParseUint: parsing \"x\": invalid syntax",
        ),
        (
            ApiServer,
            "--vmodule=x",
            "invalid argument \"x\" for \"--vmodule\" flag: \"x\" does not have the pattern=N format",
        ),
        (
            ApiServer,
            "--version=x",
            "invalid argument \"x\" for \"--version\" flag: strconv.ParseBool: parsing \"x\": invalid syntax",
        ),
        (
            ApiServer,
            "--kubelet-port=-1",
            "invalid argument \"-1\" for \"--kubelet-port\" flag: strconv.ParseUint: parsing \"-1\": invalid syntax",
        ),
        (
            ApiServer,
            "--allow-metric-labels=x",
            "invalid argument \"x\" for \"--allow-metric-labels\" flag: x must be formatted as key=value",
        ),
        (
            Kubelet,
            "--max-pods=3000000000",
            "invalid argument \"3000000000\" for \"--max-pods\" flag: strconv.ParseInt: parsing \"3000000000\": value out of range",
        ),
        (
            Kubelet,
            "--register-with-taints=foo",
            "invalid argument \"foo\" for \"--register-with-taints\" flag: invalid taint spec: foo",
        ),
        (
            Kubelet,
            "--reserved-memory=x",
            "invalid argument \"x\" for \"--reserved-memory\" flag: the reserved memory has incorrect format, expected numaNodeID:type=quantity[,type=quantity...], got x",
        ),
        (
            Kubelet,
            "--feature-gates=Foo",
            "invalid argument \"Foo\" for \"--feature-gates\" flag: malformed pair, expect string=bool",
        ),
        (
            Kubelet,
            "--eviction-hard=x",
            "invalid argument \"x\" for \"--eviction-hard\" flag: malformed pair, expect string<string",
        ),
        (Kubelet, "--address=x", "invalid argument \"x\" for \"--address\" flag: \"x\" is not a valid IP address"),
        (
            Proxy,
            "--healthz-bind-address=x",
            "invalid argument \"x\" for \"--healthz-bind-address\" flag: \"x\" is not in a valid format (ip or ip:port): address x: missing port in address",
        ),
        (
            ControllerManager,
            "--node-eviction-rate=x",
            "invalid argument \"x\" for \"--node-eviction-rate\" flag: strconv.ParseFloat: parsing \"x\": invalid syntax",
        ),
    ] {
        assert_eq!(line(component, text).unwrap_err().to_string(), message, "{text}");
    }
}

#[test]
fn help_and_version_are_requests_of_their_own() {
    for component in Component::ALL {
        assert_eq!(line(component, "--help"), Ok(CommandLine::Help));
        assert_eq!(line(component, "-h --v=2"), Ok(CommandLine::Help));
        assert_eq!(line(component, "--version"), Ok(CommandLine::Version("true".to_owned())));
        assert_eq!(line(component, "--version=raw"), Ok(CommandLine::Version("raw".to_owned())));
        assert!(matches!(line(component, "--version=false"), Ok(CommandLine::Run(_))));
        assert_eq!(values(component, "--version=v1.36.4-a", "version"), ["v1.36.4-a"]);
    }
}

/// Every default is a value that the flag accepts.
#[test]
fn defaults_can_be_given() {
    for component in Component::ALL {
        for flag in table::flags(component) {
            let words = [format!("--{}={}", flag.name, flag.default)];
            let read = parse(component, &words);
            let is_empty_value = flag.default.is_empty();
            assert!(read.is_ok() || is_empty_value, "{} {words:?}: {read:?}", component.name());
        }
    }
}
