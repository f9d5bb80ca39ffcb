//! Tables of command lines of Kubernetes and what becomes of them.

use clap::ArgAction;
use knarr_component_flags::{CommandLine, Component, Status, flags, parse, status};

use super::translate::{Translation, command_name, has_name};
use super::{translation, without_effect};

/// What a component cannot do without.
fn required(component: Component) -> &'static str {
    match component {
        Component::ApiServer => {
            "--etcd-servers=https://e:1 --service-account-issuer=i --service-account-key-file=k \
             --service-account-signing-key-file=k"
        }
        Component::Kubelet => "--kubeconfig=k",
        _ => "",
    }
}

fn translated(component: Component, line: &str) -> anyhow::Result<Translation> {
    let words: Vec<String> =
        required(component).split_whitespace().chain(line.split_whitespace()).map(str::to_owned).collect();
    match parse(component, &words)? {
        CommandLine::Run(given) => {
            let mut translation = translation(&given)?;
            if component == Component::ApiServer {
                super::api_server::set_store(&given, &mut translation)?;
            }
            Ok(translation)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn flags_become_settings() {
    use Component::{ApiServer, ControllerManager, Kubelet, Proxy, Scheduler};
    for (component, line, expected) in [
        (ApiServer, "--secure-port=1234 --bind-address=127.0.0.1", &["--listen=127.0.0.1:1234"][..]),
        (ApiServer, "--bind-address=::", &["--listen=[::]:6443"]),
        (
            ApiServer,
            "",
            &["--authorization-mode=AlwaysAllow", "--anonymous-auth=false", "--service-cluster-ip-range=10.0.0.0/24"],
        ),
        (ApiServer, "--authorization-mode=Node,RBAC", &["--authorization-mode=Node", "--authorization-mode=RBAC"]),
        (ApiServer, "--cert-dir=/c", &["--data-dir=/c/knarr", "--kubelet-insecure-tls"]),
        (ApiServer, "--kubelet-certificate-authority=a", &["--kubelet-certificate-authority=a"]),
        (ApiServer, "--etcd-servers=https://a:1", &["--datastore=https://e:1", "--datastore=https://a:1"]),
        (
            ApiServer,
            "--encryption-provider-config=f --encryption-provider-config-automatic-reload",
            &["--encryption-provider-config-automatic-reload"],
        ),
        (
            ApiServer,
            "--admission-control=LimitRanger",
            &["--enable-admission-plugins=LimitRanger", "--disable-admission-plugins=NamespaceLifecycle"],
        ),
        (
            ApiServer,
            "--admission-control=",
            &["--disable-admission-plugins=LimitRanger", "--disable-admission-plugins=NamespaceLifecycle"],
        ),
        (ApiServer, "--token-auth-file=t", &["--token-auth-file=t"]),
        (ApiServer, "--audit-log-maxage=0", &["--audit-log-maxage=0", "--audit-log-maxbackup=100"]),
        (
            ApiServer,
            "--feature-gates=PodTopologyLabelsAdmission=false",
            // Without a component before the colon, as upstream writes the flag's value.
            &["--feature-gates=:PodTopologyLabelsAdmission=false"],
        ),
        (ControllerManager, "", &["--leader-elect=true", "--leader-elect-lease-duration=15s"]),
        (
            ControllerManager,
            "--allocate-node-cidrs --cluster-cidr=10.0.0.0/8 --node-cidr-mask-size=20",
            &["--cluster-cidr=10.0.0.0/8", "--node-cidr-mask-size-ipv4=20"],
        ),
        (ControllerManager, "--controllers=*,-nodeipam", &["--controllers=*", "--controllers=-node-ipam-controller"]),
        (Scheduler, "--master=https://s:1 --kubeconfig=k", &["--master=https://s:1", "--kubeconfig=k"]),
        (Scheduler, "--leader-elect=false --secure-port=0", &["--leader-elect=false", "--secure-port=0"]),
        (
            Kubelet,
            "--kubeconfig=k --hostname-override=n --address=1.2.3.4 --root-dir=/r",
            &["--node-name=n", "--node-listen=1.2.3.4:10250", "--root-dir=/r", "--data-dir=/r/knarr", "--network=none"],
        ),
        (Kubelet, "--kubeconfig=k", &["--cluster-domain="]),
        (Kubelet, "--kubeconfig=k", &["--rotate-server-certificates=false", "--cert-dir=/var/lib/kubelet/pki"]),
        (
            Kubelet,
            "--kubeconfig=k",
            &[
                "--anonymous-auth=true",
                "--authentication-token-webhook=false",
                "--authorization-mode=AlwaysAllow",
                "--read-only-port=10255",
            ],
        ),
        (
            Kubelet,
            "--kubeconfig=k --config=c --authorization-webhook-cache-authorized-ttl=7s",
            // A configuration file has other defaults.
            &[
                "--anonymous-auth=false",
                "--authentication-token-webhook=true",
                "--authorization-mode=Webhook",
                "--authorization-webhook-cache-authorized-ttl=7s",
                "--read-only-port=0",
            ],
        ),
        (
            Kubelet,
            "--kubeconfig=k --rotate-server-certificates --cert-dir=/c",
            &["--rotate-server-certificates=true", "--cert-dir=/c"],
        ),
        (
            Kubelet,
            "--kubeconfig=k --eviction-hard=memory.available<1Gi,nodefs.available<5%",
            &["--eviction-hard=memory.available<1Gi", "--eviction-hard=nodefs.available<5%"],
        ),
        (
            Kubelet,
            "--kubeconfig=k --reserved-memory=0:memory=1Gi;1:memory=2Gi",
            &["--reserved-memory=0:memory=1Gi;1:memory=2Gi"],
        ),
        (
            Proxy,
            "--healthz-bind-address=127.0.0.1 --metrics-bind-address=0.0.0.0:1",
            &["--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=0.0.0.0:1"],
        ),
    ] {
        let translation = translated(component, line).unwrap();
        for setting in expected {
            let found = translation.settings().iter().any(|own| own == setting);
            assert!(found, "{line}: no {setting} in {:?}", translation.settings());
        }
        let matches = crate::commands::command().try_get_matches_from(translation.words());
        assert!(matches.is_ok(), "{line}: {}", matches.unwrap_err());
    }
}

#[test]
fn the_servers_own_certificate_is_put_into_cert_dir_unless_another_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join("knarr/pki");
    std::fs::create_dir_all(&own).unwrap();
    let (path, certificate) = (directory.path().display().to_string(), directory.path().join("apiserver.crt"));
    let line = format!("--cert-dir={path}");
    let copied = format!("--serving-certificate-dir={path}");
    let served = format!("--tls-cert-file={path}/apiserver.crt");
    let has =
        |setting: &String| translated(Component::ApiServer, &line).unwrap().settings().iter().any(|own| own == setting);
    assert!(has(&copied) && !has(&served), "nothing is there");
    std::fs::write(directory.path().join("apiserver.key"), "key").unwrap();
    std::fs::write(&certificate, "leaf\nauthority\n").unwrap();
    assert!(!has(&copied) && has(&served), "another one is there");
    std::fs::write(own.join("ca.crt"), "authority\n").unwrap();
    assert!(has(&copied) && !has(&served), "its own is there");
}

#[test]
fn components_do_not_use_the_kubeconfig_of_whoever_starts_them() {
    for (component, line, expected) in [
        (Component::ControllerManager, "", true),
        (Component::ControllerManager, "--kubeconfig=k", false),
        (Component::ControllerManager, "--master=http://s:1", false),
        (Component::Proxy, "--master=http://s:1", false),
        (Component::Scheduler, "", true),
        (Component::Scheduler, "--config=c", false),
        (Component::Proxy, "--kubeconfig=", true),
        (Component::ApiServer, "", false),
        (Component::Kubelet, "", false),
    ] {
        let words: Vec<String> =
            required(component).split_whitespace().chain(line.split_whitespace()).map(str::to_owned).collect();
        let CommandLine::Run(given) = parse(component, &words).unwrap() else { panic!("{line}") };
        let translation = translation(&given).unwrap();
        assert_eq!(super::needs_kubeconfig(&given, &translation), expected, "{component:?} {line}");
    }
}

#[test]
fn what_cannot_be_honoured_is_refused_or_reported() {
    for (component, line, message) in [
        (
            Component::ApiServer,
            "--secure-port=0",
            "--secure-port 0 must be between 1 and 65535, inclusive. It cannot be turned off with 0",
        ),
        (Component::ApiServer, "--feature-gates=Foo=true", "unrecognized feature gate: Foo"),
        (
            Component::Kubelet,
            "--feature-gates=Foo=true",
            "failed to set feature gates from initial flags-based config: unrecognized feature gate: Foo",
        ),
        (Component::ApiServer, "--runtime-config=foo=bar", "runtime-config invalid key foo"),
        (Component::ApiServer, "--runtime-config=foo", "runtime-config invalid key foo"),
        (Component::ApiServer, "--runtime-config=foo/v1=true", "unknown api groups foo/v1"),
        (
            Component::ApiServer,
            "--runtime-config=batch/v2alpha1=true",
            "group version batch/v2alpha1 that has not been registered",
        ),
        (
            Component::Proxy,
            "--proxy-mode=x",
            "failed validate: KubeProxyConfiguration.Mode.ProxyMode: Invalid value: \"x\": must be iptables, ipvs, nftables or blank (blank means the best-available proxy [currently iptables])",
        ),
        (Component::ControllerManager, "--controllers=foo", "\"foo\" is not in the list of known controllers"),
        (
            Component::ControllerManager,
            "--cloud-provider=aws",
            "--cloud-provider: Unsupported value: \"aws\": supported values: \"external\"",
        ),
    ] {
        assert_eq!(translated(component, line).unwrap_err().to_string(), message);
    }
    let Ok(CommandLine::Run(none)) = parse(Component::ApiServer, &[]) else { panic!("it is valid") };
    assert_eq!(
        translation(&none).unwrap_err().to_string(),
        "[--etcd-servers must be specified, service-account-issuer is a required flag, either `--service-account-key-file` or \
         `--service-account-signing-endpoint` must be set, --service-account-signing-key-file and --service-account-issuer are \
         required flags]"
    );
    for (component, line, warning) in [
        (Component::ApiServer, "--goaway-chance=0.01", None),
        (Component::ApiServer, "--allow-privileged", None),
        (
            Component::ApiServer,
            "--aggregator-reject-forwarding-redirect=false",
            Some("--aggregator-reject-forwarding-redirect has no effect: it is always true"),
        ),
        (Component::ApiServer, "--apiserver-count=1", None),
        (Component::ApiServer, "--apiserver-count=2", Some("--apiserver-count has no effect")),
        (Component::Proxy, "--conntrack-min=1", Some("--conntrack-min has no effect")),
        (Component::Scheduler, "--vmodule=a=1", Some("--vmodule has no effect: `KNARR_LOG` selects modules")),
    ] {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let Ok(CommandLine::Run(given)) = parse(component, &words) else { panic!("{line}") };
        assert_eq!(
            without_effect(&given).unwrap(),
            warning.map(str::to_owned).into_iter().collect::<Vec<_>>(),
            "{line}"
        );
    }
}

/// What the table of flags calls passed exists as a setting, and takes what the flag takes.
#[test]
fn every_passed_flag_has_a_setting() {
    let command = crate::commands::command();
    let mut wrong = Vec::new();
    for component in Component::ALL {
        let own = command.find_subcommand(command_name(component)).unwrap();
        for flag in flags(component) {
            let Some(Status::Passed(target)) = status(component, flag.name) else { continue };
            let Some(setting) = own.get_arguments().find(|setting| has_name(setting, target)) else {
                wrong.push(format!("{} --{}: there is no setting {target}", component.name(), flag.name));
                continue;
            };
            let takes_value = !matches!(setting.get_action(), ArgAction::SetTrue);
            if flag.type_name != "bool" && !takes_value {
                wrong.push(format!("{} --{}: the setting {target} takes no value", component.name(), flag.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each flag that works changes something, for a value other than its default.
#[test]
fn every_working_flag_has_an_effect() {
    // These need files or other flags, or act before the translation.
    const ELSEWHERE: &[&str] = &[
        "help",
        "version",
        "v",
        "feature-gates",
        "config",
        "config-dir",
        "controllers",
        "storage-backend",
        "runtime-config",
        "cloud-provider",
        "allocate-node-cidrs",
        "cluster-cidr",
        "node-cidr-mask-size",
        "etcd-servers",
        "anonymous-auth",
        "healthz-port",
        "metrics-port",
        "nodeport-addresses",
        "emulated-version",
        "min-compatibility-version",
        "emulation-forward-compatible",
        "runtime-config-emulation-forward-compatible",
    ];
    let mut wrong = Vec::new();
    for component in Component::ALL {
        let without = translated(component, "").unwrap();
        for flag in flags(component).iter().filter(|flag| !ELSEWHERE.contains(&flag.name)) {
            if !matches!(status(component, flag.name), Some(Status::Passed(_) | Status::Translated(_))) {
                continue;
            }
            let is_mode_of_kubelet = component == Component::Kubelet && flag.name == "authorization-mode";
            let value = if is_mode_of_kubelet { "Webhook" } else { sample(flag.type_name, flag.default, flag.name) };
            let with = translated(component, &format!("--{}={value} {}", flag.name, company(flag.name)));
            match with {
                Ok(with) if with.settings() != without.settings() => {}
                Ok(_) => wrong.push(format!("{} --{} changes nothing", component.name(), flag.name)),
                Err(error) => wrong.push(format!("{} --{}: {error}", component.name(), flag.name)),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Flags whose values are checked, with valid ones.
const CHECKED: [(&str, &str); 16] = [
    ("admission-control", "AlwaysPullImages"),
    ("authorization-mode", "RBAC"),
    ("cors-allowed-origins", "^https://sample$"),
    ("disable-admission-plugins", "LimitRanger"),
    ("enable-admission-plugins", "AlwaysPullImages"),
    ("enforce-node-allocatable", "none"),
    ("goaway-chance", "0.01"),
    ("hairpin-mode", "hairpin-veth"),
    ("oidc-issuer-url", "https://issuer"),
    ("service-account-jwks-uri", "https://keys"),
    ("service-account-max-token-expiration", "77h"),
    ("service-cluster-ip-range", "10.7.0.0/16"),
    ("storage-media-type", "application/json"),
    ("strict-transport-security-directives", "preload"),
    ("topology-manager-policy", "restricted"),
    ("topology-manager-scope", "pod"),
];

/// The flags without which another one is refused.
fn company(name: &str) -> &'static str {
    match name {
        "authorization-policy-file" => "--authorization-mode=ABAC",
        "authorization-webhook-config-file" => "--authorization-mode=Webhook",
        "cgroups-per-qos" => "--enforce-node-allocatable=none",
        "encryption-provider-config-automatic-reload" => "--encryption-provider-config=f",
        "oidc-client-id" => "--oidc-issuer-url=https://issuer",
        _ if name.starts_with("oidc-") => "--oidc-issuer-url=https://issuer --oidc-client-id=c",
        "tls-cert-file" => "--tls-private-key-file=f",
        "tls-private-key-file" => "--tls-cert-file=f",
        _ => "",
    }
}

/// A value of the type other than the default.
fn sample(type_name: &str, default: &str, name: &str) -> &'static str {
    if let Some((_, value)) = CHECKED.iter().find(|(checked, _)| *checked == name) {
        return value;
    }
    match (type_name, default) {
        ("bool", "true") => "false",
        ("bool", _) => "true",
        ("int" | "int32" | "uint", _) => "77",
        ("float" | "float32", _) => "0.3",
        ("duration", _) => "77s",
        ("ip", _) => "127.0.0.9",
        ("ipport", _) => "127.0.0.9:77",
        ("mapStringString", _) if matches!(name, "eviction-hard" | "eviction-soft") => "memory.available<1Gi",
        ("mapStringString", _) => "a=b",
        ("[]v1.Taint", _) => "a=b:NoSchedule",
        ("reserved-memory", _) => "0:memory=1Gi",
        ("namedCertKey", _) => "a,b",
        _ if name == "service-node-port-range" => "30100-30200",
        _ => "sample",
    }
}
