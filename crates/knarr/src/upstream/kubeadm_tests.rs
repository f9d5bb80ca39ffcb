//! The command lines and configuration files that kubeadm v1.36 writes become settings without a warning that misleads.

use knarr_component_flags::{CommandLine, Component, Given, configure, parse};
use serde_json::{Value, json};

use super::translate::Translation;
use super::translation;

fn given(component: Component, line: &str) -> Given {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    match parse(component, &words).unwrap() {
        CommandLine::Run(given) => given,
        other => panic!("{other:?}"),
    }
}

/// The settings, which the command must accept, and all warnings.
fn translated(component: Component, line: &str, file: Option<(&Value, bool)>) -> (Translation, Vec<String>) {
    let mut given = given(component, line);
    let mut warnings = Vec::new();
    if let Some((document, flags_win)) = file {
        warnings = configure(&mut given, document, flags_win).unwrap();
    }
    let translation = translation(&given).unwrap();
    let matches = crate::commands::command().try_get_matches_from(translation.words());
    assert!(matches.is_ok(), "{line}: {}", matches.unwrap_err());
    warnings.extend(translation.warnings.iter().cloned());
    (translation, warnings)
}

#[test]
fn the_kubelets_file_leaves_zeros_at_their_defaults() {
    let file = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"cacheTTL": "0s", "enabled": true},
            "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"}},
        "authorization": {"mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "0s", "cacheUnauthorizedTTL": "0s"}},
        "cgroupDriver": "systemd", "clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": "", "cpuManagerReconcilePeriod": "0s", "crashLoopBackOff": {},
        "evictionPressureTransitionPeriod": "0s", "fileCheckFrequency": "0s", "healthzBindAddress": "127.0.0.1",
        "healthzPort": 10248, "httpCheckFrequency": "0s", "imageMaximumGCAge": "0s", "imageMinimumGCAge": "0s",
        "logging": {"flushFrequency": 0, "options": {"json": {"infoBufferSize": "0"}, "text": {"infoBufferSize": "0"}},
            "verbosity": 0},
        "memorySwap": {}, "nodeStatusReportFrequency": "0s", "nodeStatusUpdateFrequency": "0s",
        "rotateCertificates": true, "runtimeRequestTimeout": "0s", "shutdownGracePeriod": "0s",
        "shutdownGracePeriodCriticalPods": "0s", "staticPodPath": "/etc/kubernetes/manifests",
        "streamingConnectionIdleTimeout": "0s", "syncFrequency": "0s", "volumeStatsAggPeriod": "0s",
    });
    let line = "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
                --config=/var/lib/kubelet/config.yaml --container-runtime-endpoint=unix:///run/containerd/containerd.sock";
    let (translation, warnings) = translated(Component::Kubelet, line, Some((&file, true)));
    assert_eq!(warnings, Vec::<String>::new());
    for absent in ["node-status-update-frequency", "node-status-report-frequency", "minimum-image-ttl-duration"] {
        assert!(!translation.has(absent), "{absent} in {:?}", translation.settings());
    }
    assert!(translation.is("cgroup-driver", "systemd") && translation.is("cluster-domain", "cluster.local"));
}

#[test]
fn the_proxys_file_leaves_zeros_at_their_defaults() {
    let sync = json!({"masqueradeAll": false, "masqueradeBit": null, "minSyncPeriod": "0s", "syncPeriod": "0s"});
    let file = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "bindAddress": "0.0.0.0", "bindAddressHardFail": false,
        "clientConnection": {"acceptContentTypes": "", "burst": 0, "contentType": "",
            "kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf", "qps": 0},
        "clusterCIDR": "10.244.0.0/16", "configSyncPeriod": "0s", "detectLocalMode": "",
        "detectLocal": {"bridgeInterface": "", "interfaceNamePrefix": ""},
        "healthzBindAddress": "", "hostnameOverride": "", "iptables": sync, "nftables": sync,
        "metricsBindAddress": "", "mode": "", "nodePortAddresses": null, "oomScoreAdj": null, "portRange": "",
        "showHiddenMetricsForVersion": "", "winkernel": {"enableDSR": false, "networkName": ""},
    });
    let line = "--config=/var/lib/kube-proxy/config.conf --hostname-override=n1";
    let (translation, warnings) = translated(Component::Proxy, line, Some((&file, false)));
    assert_eq!(warnings, Vec::<String>::new());
    for setting in ["--healthz-bind-address=0.0.0.0:10256", "--metrics-bind-address=127.0.0.1:10249"] {
        assert!(translation.settings().iter().any(|own| own == setting), "{setting} in {:?}", translation.settings());
    }
}

#[test]
fn the_manifests_of_the_control_plane_are_accepted() {
    let controller_manager = "--allocate-node-cidrs=true --authentication-kubeconfig=c --authorization-kubeconfig=c \
        --bind-address=127.0.0.1 --client-ca-file=ca --cluster-cidr=10.244.0.0/16 --cluster-name=kubernetes \
        --cluster-signing-cert-file=ca --cluster-signing-key-file=key --controllers=*,bootstrapsigner,tokencleaner \
        --kubeconfig=c --leader-elect=true --root-ca-file=ca --service-cluster-ip-range=10.96.0.0/12 \
        --use-service-account-credentials=true";
    let scheduler = "--authentication-kubeconfig=s --authorization-kubeconfig=s --bind-address=127.0.0.1 --kubeconfig=s \
        --leader-elect=true";
    let api_server = "--advertise-address=10.0.0.1 --allow-privileged=true --authorization-mode=Node,RBAC \
        --client-ca-file=ca --enable-admission-plugins=NodeRestriction --enable-bootstrap-token-auth=true \
        --etcd-cafile=e --etcd-certfile=e --etcd-keyfile=e --etcd-servers=https://127.0.0.1:2379 \
        --kubelet-client-certificate=k --kubelet-client-key=k \
        --kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname --proxy-client-cert-file=p \
        --proxy-client-key-file=p --requestheader-allowed-names=front-proxy-client --requestheader-client-ca-file=f \
        --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-group-headers=X-Remote-Group \
        --requestheader-username-headers=X-Remote-User --secure-port=6443 \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local --service-account-key-file=sa.pub \
        --service-account-signing-key-file=sa.key --service-cluster-ip-range=10.96.0.0/12 --tls-cert-file=t \
        --tls-private-key-file=t";
    for (component, line) in [
        (Component::ControllerManager, controller_manager),
        (Component::Scheduler, scheduler),
        (Component::ApiServer, api_server),
    ] {
        let (_, warnings) = translated(component, line, None);
        let ineffective: Vec<&String> = warnings.iter().filter(|warning| warning.contains("no effect")).collect();
        assert!(ineffective.is_empty(), "{component:?}: {ineffective:?}");
    }
}
