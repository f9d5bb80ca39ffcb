//! Features of pods, on two nodes and with the real kubectl: volumes, probes, init containers and sidecars, exec, logs and
//! port forwarding, images of a registry with a secret.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};

use super::harness::{self, Cluster, GrpcHealth, IMAGE, Options};
use super::{log_rotation, pulling};

/// A pod whose log or event shows that its volume works.
struct Row {
    name: &'static str,
    /// Additions to the container and to the pod: the volume is called `v`.
    mount: &'static str,
    volume: &'static str,
    script: &'static str,
    expected: &'static str,
}

const fn row(
    name: &'static str,
    mount: &'static str,
    volume: &'static str,
    script: &'static str,
    expected: &'static str,
) -> Row {
    Row { name, mount, volume, script, expected }
}

const AT_V: &str = "volumeMounts: [{name: v, mountPath: /v}]";

/// DIRECTORY stands for a directory on the nodes, SOCKET for the socket of their containerd.
#[rustfmt::skip]
const VOLUMES: &[Row] = &[
    row("empty-disk", AT_V, "emptyDir: {}", "echo kept > /v/file; cat /v/file; busybox stat -c %a /v", "kept\n777"),
    row("empty-memory", AT_V, "emptyDir: {medium: Memory, sizeLimit: 2Mi}",
        "busybox grep ' /v ' /proc/mounts | busybox grep -o 'size=2048k'; cat /dev/zero > /v/file 2>/dev/null || echo full", "size=2048k\nfull"),
    row("host-any", AT_V, "hostPath: {path: DIRECTORY/there}", "cat /v/file", "here"),
    row("host-directory", AT_V, "hostPath: {path: DIRECTORY/there, type: Directory}", "cat /v/file", "here"),
    row("host-new-directory", AT_V, "hostPath: {path: DIRECTORY/new, type: DirectoryOrCreate}", "busybox stat -c %a /v", "755"),
    row("host-file", AT_V, "hostPath: {path: DIRECTORY/there/file, type: File}", "cat /v", "here"),
    row("host-new-file", AT_V, "hostPath: {path: DIRECTORY/new-file, type: FileOrCreate}", "busybox stat -c '%a %s' /v", "644 0"),
    row("host-socket", AT_V, "hostPath: {path: SOCKET, type: Socket}", "test -S /v && echo socket", "socket"),
    row("host-device", AT_V, "hostPath: {path: /dev/null, type: CharDevice}", "test -c /v && echo device", "device"),
    row("host-mismatch", AT_V, "hostPath: {path: DIRECTORY/there/file, type: Directory}", "true", "!hostPath type check failed: DIRECTORY/there/file is not a directory"),
    row("host-missing", AT_V, "hostPath: {path: DIRECTORY/missing, type: File}", "true", "!hostPath type check failed: DIRECTORY/missing is not a file"),
    row("config-map", AT_V, "configMap: {name: content, items: [{key: a, path: sub/first, mode: 256}]}",
        "cat /v/sub/first; echo; busybox stat -L -c %a /v/sub/first; ls /v", "apple\n400\nsub"),
    row("optional", AT_V, "configMap: {name: nowhere, optional: true}", "ls /v; echo nothing", "nothing"),
    row("secret", AT_V, "secret: {secretName: hidden, defaultMode: 288}",
        "cat /v/word; echo; busybox stat -L -c %a /v/word; busybox grep -c ' /v tmpfs ' /proc/mounts", "sesame\n440\n1"),
    row("downward", AT_V, "downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: cpu, resourceFieldRef: {containerName: main, resource: limits.cpu, divisor: 1m}}]}",
        "cat /v/labels; echo; cat /v/cpu", "app=\"downward\"\n200"),
    row("projected", AT_V, "projected: {sources: [{serviceAccountToken: {path: token, audience: tests}}, {configMap: {name: content}}, {secret: {name: hidden}}, {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}",
        "busybox tr '.' '\\n' < /v/token | busybox wc -l; cat /v/a /v/word /v/name; echo", "2\napplesesameprojected"),
    row("own-token", "", "", "cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo; busybox head -n 1 /var/run/secrets/kubernetes.io/serviceaccount/ca.crt", "default\n-----BEGIN CERTIFICATE-----"),
    row("image", AT_V, "image: {reference: localhost/knarr/busybox:1}", "test -f /v/bin/busybox && echo image; touch /v/x 2>/dev/null || echo read-only", "image\nread-only"),
    row("sub-path", "volumeMounts: [{name: v, mountPath: /v, subPath: a}]", "configMap: {name: content}", "cat /v; echo", "apple"),
    row("sub-path-expr", "env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]\n    volumeMounts: [{name: v, mountPath: /v, subPathExpr: logs/$(POD)}, {name: v, mountPath: /all}]",
        "emptyDir: {}", "touch /v/x; ls /all/logs", "sub-path-expr"),
    row("read-only", "volumeMounts: [{name: v, mountPath: /v, readOnly: true}]", "emptyDir: {}", "touch /v/x 2>/dev/null || echo read-only", "read-only"),
    row("claim-host-path", AT_V, "persistentVolumeClaim: {claimName: on-host}", "echo one >> /v/file; cat /v/file", "one"),
    row("claim-local", AT_V, "persistentVolumeClaim: {claimName: on-disk}", "cat /v/file", "here"),
    row("group", AT_V, "emptyDir: {}\n  securityContext: {fsGroup: 4242, runAsUser: 1000, runAsNonRoot: true}", "touch /v/x; busybox stat -c '%u %g' /v/x", "1000 4242"),
];

fn claims(directory: &str) -> String {
    let volume = |name: &str, source: &str, more: &str| {
        format!(
            r#"
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  capacity: {{storage: 1Mi}}
  accessModes: [ReadWriteOnce]
  storageClassName: {name}
  {source}
  {more}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{accessModes: [ReadWriteOnce], storageClassName: {name}, resources: {{requests: {{storage: 1Mi}}}}}}
"#
        )
    };
    let on_second = "nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-2]}]}]}}";
    [
        volume("on-host", &format!("hostPath: {{path: {directory}/claimed, type: DirectoryOrCreate}}"), ""),
        volume("on-disk", &format!("local: {{path: {directory}/there}}"), on_second),
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: content}\ndata: {a: apple, b: plum}\n".to_owned(),
        "apiVersion: v1\nkind: Secret\nmetadata: {name: hidden}\nstringData: {word: sesame}\n".to_owned(),
    ]
    .join("\n---\n")
}

/// Pods alternate between both nodes, unless their volume decides.
fn pod(number: usize, row: &Row) -> String {
    let Row { name, mount, volume, script, .. } = row;
    let node = match volume.contains("on-disk") {
        true => String::new(),
        false => format!("nodeName: node-{}", 1 + number % 2),
    };
    let volumes = if volume.is_empty() { String::new() } else { format!("volumes:\n  - name: v\n    {volume}") };
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  {node}
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: {IMAGE}
    command: ["sh", "-c", {script:?}]
    resources: {{limits: {{cpu: 200m}}, requests: {{cpu: 10m}}}}
    {mount}
  {volumes}
"#
    )
}

#[test]
fn two_nodes_support_the_features_of_pods() {
    if !harness::is_possible() {
        return;
    }
    let agents = log_rotation::FLAGS.to_vec();
    let cluster = Cluster::with(Options { nodes: 2, agents, ..Options::default() });
    volumes_hold_what_they_should(&cluster);
    let talker = log_rotation::Talker::start(&cluster);
    probes_decide(&cluster);
    containers_start_and_stop_in_order(&cluster);
    kubectl_reaches_into_pods(&cluster);
    pulling::a_secret_opens_a_registry(&cluster);
    talker.was_heard_over_a_rotation(&cluster);
}

fn volumes_hold_what_they_should(cluster: &Cluster) {
    let directory = cluster.nodes[0].data.with_file_name("on-host");
    std::fs::create_dir_all(directory.join("there")).expect("a directory");
    std::fs::write(directory.join("there/file"), "here\n").expect("a file");
    let directory = directory.to_string_lossy().into_owned();
    let socket = cluster.nodes[0].data.join("containerd/containerd.sock").to_string_lossy().into_owned();
    let placed = |text: &str| text.replace("DIRECTORY", &directory).replace("SOCKET", &socket);
    cluster.apply(&claims(&directory));
    let manifests: Vec<String> = VOLUMES.iter().enumerate().map(|(number, row)| placed(&pod(number, row))).collect();
    cluster.apply(&manifests.join("---"));
    let mut wrong = Vec::new();
    for row in VOLUMES {
        let expected = placed(row.expected);
        if let Some(error) = expected.strip_prefix('!') {
            cluster.wait_for(&format!("the error of {}", row.name), || {
                let selector = format!("involvedObject.name={},reason=FailedMount", row.name);
                let event = cluster.try_kubectl(&[
                    "get",
                    "events",
                    "--field-selector",
                    &selector,
                    "-o",
                    "jsonpath={..message}",
                ]);
                event.unwrap_or_default().contains(error)
            });
            continue;
        }
        cluster.wait_for(&format!("the end of {}", row.name), || phase(cluster, row.name) == "Succeeded");
        let said = cluster.kubectl(&["logs", row.name]);
        if said != expected {
            wrong.push(format!("{} said {said:?} and not {expected:?}", row.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    content_follows_its_source(cluster);
    cluster.kubectl(&["delete", "pods", "--all", "--wait=false"]);
}

fn phase(cluster: &Cluster, pod: &str) -> String {
    cluster.try_kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.phase}"]).unwrap_or_default()
}

fn content_follows_its_source(cluster: &Cluster) {
    let reader =
        row("reader", AT_V, "configMap: {name: content}", "until busybox grep -q pear /v/a; do sleep 0.1; done", "");
    cluster.apply(&pod(1, &reader));
    cluster.wait_for("the reader to run", || cluster.ready_pods("app=reader") == 1);
    cluster.kubectl(&["patch", "configmap", "content", "-p", r#"{"data":{"a":"pear"}}"#]);
    cluster.wait_for("the reader to see the change", || phase(cluster, "reader") == "Succeeded");
}

/// Handlers that succeed and that fail, in pods that serve port 8080 and, by the test's own server, gRPC on 5005.
const HANDLERS: [(&str, &str, &str); 4] = [
    ("exec", r#"exec: {command: ["true"]}"#, r#"exec: {command: ["false"]}"#),
    ("http", "httpGet: {port: 8080, path: /}", "httpGet: {port: 8080, path: /missing}"),
    ("tcp", "tcpSocket: {port: 8080}", "tcpSocket: {port: 8081}"),
    ("grpc", "grpc: {port: 5005}", "grpc: {port: 5005, service: sick}"),
];
const KINDS: [&str; 3] = ["startup", "liveness", "readiness"];

fn probed(name: &str, handler: &str, node: &str, probes: &str) -> String {
    let host_network = handler == "grpc";
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}, probed: "true"}}}}
spec:
  nodeName: {node}
  hostNetwork: {host_network}
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: {IMAGE}
    command: ["sh", "-c", "mkdir -p /www; echo well > /www/index.html; exec httpd -f -p {} -h /www"]
{probes}
"#,
        // On the node's network each would need the same port.
        if host_network { "127.0.0.1:0" } else { "8080" },
    )
}

fn probes_decide(cluster: &Cluster) {
    let _servers: Vec<GrpcHealth> = cluster.nodes.iter().map(|node| GrpcHealth::serve(&node.host, 5005)).collect();
    let probe = |kind: &str, handler: &str, threshold: u32| {
        format!("    {kind}Probe: {{{handler}, periodSeconds: 1, failureThreshold: {threshold}, timeoutSeconds: 5}}\n")
    };
    let mut manifests = Vec::new();
    for (number, (name, good, bad)) in HANDLERS.iter().enumerate() {
        let node = format!("node-{}", 1 + number % 2);
        let all: String = KINDS.iter().map(|kind| probe(kind, good, 30)).collect();
        manifests.push(probed(&format!("{name}-well"), name, &node, &all));
        for kind in KINDS {
            manifests.push(probed(&format!("{name}-{kind}"), name, &node, &probe(kind, bad, 1)));
        }
    }
    cluster.apply(&manifests.join("---"));
    let field = |pod: &str, path: &str| {
        cluster.try_kubectl(&["get", "pod", pod, "-o", &format!("jsonpath={{.status.{path}}}")]).unwrap_or_default()
    };
    let event = |pod: &str, reason: &str| {
        let selector = format!("involvedObject.name={pod},reason={reason}");
        cluster
            .try_kubectl(&["get", "events", "--field-selector", &selector, "-o", "jsonpath={..message}"])
            .unwrap_or_default()
    };
    for (name, _, _) in HANDLERS {
        let well = format!("{name}-well");
        cluster.wait_for(&format!("{well} to be ready"), || cluster.ready_pods(&format!("app={well}")) == 1);
        for (kind, shown) in [("startup", "Startup"), ("liveness", "Liveness")] {
            let pod = format!("{name}-{kind}");
            cluster.wait_for(&format!("{pod} to be restarted"), || {
                field(&pod, "containerStatuses[0].restartCount").parse::<u32>().is_ok_and(|count| count > 0)
            });
            // Events are written asynchronously.
            for (reason, expected) in [
                ("Killing", format!("failed {kind} probe, will be restarted")),
                ("Unhealthy", format!("{shown} probe failed")),
            ] {
                cluster.wait_for(&format!("{pod}: {reason}: {expected}"), || event(&pod, reason).contains(&expected));
            }
        }
        let pod = format!("{name}-readiness");
        cluster.wait_for(&format!("{pod} to be found unready"), || {
            event(&pod, "Unhealthy").contains("Readiness probe failed")
        });
        assert_eq!(field(&pod, "containerStatuses[0].ready"), "false", "{pod}");
        for pod in [pod, well] {
            assert_eq!(field(&pod, "containerStatuses[0].restartCount"), "0", "{pod}");
        }
    }
    cluster.kubectl(&["delete", "pods", "-l", "probed", "--wait=false"]);
}

fn containers_start_and_stop_in_order(cluster: &Cluster) {
    let say = |text: &str| format!("echo {text} >> /v/order");
    let container = |name: &str, more: &str, script: &str| {
        format!("  - name: {name}\n    image: {IMAGE}\n    command: [\"sh\", \"-c\", {script:?}]\n    {AT_V}\n{more}")
    };
    // Each waits for its termination, records it, and takes a moment.
    let lasting = |name: &str| {
        let (starts, ends) = (say(&format!("{name} starts")), say(&format!("{name} ends")));
        format!("{starts}; trap '{ends}; exit 0' TERM; while true; do sleep 0.05; done")
    };
    let directory = cluster.nodes[0].data.with_file_name("on-host").join("order");
    let hook = format!("    lifecycle: {{preStop: {{exec: {{command: [\"sh\", \"-c\", \"{}\"]}}}}}}\n", say("hook"));
    let started = r#"    startupProbe: {exec: {command: ["sh", "-c", "busybox grep -q 'side starts' /v/order"]}, periodSeconds: 1}
    restartPolicy: Always
"#;
    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: ordered, labels: {{app: ordered}}}}
spec:
  nodeName: node-2
  initContainers:
{}{}{}
  containers:
{}
  volumes: [{{name: v, hostPath: {{path: {}, type: DirectoryOrCreate}}}}]
"#,
        container("first", "", &say("first")),
        container("side", started, &lasting("side")),
        container("second", "", &say("second")),
        container("main", &hook, &lasting("main")),
        directory.display(),
    ));
    cluster.wait_for("the pod to be ready", || cluster.ready_pods("app=ordered") == 1);
    cluster.wait_for("the main container to start", || {
        std::fs::read_to_string(directory.join("order")).is_ok_and(|order| order.contains("main starts"))
    });
    cluster.kubectl(&["delete", "pod", "ordered"]);
    let order = std::fs::read_to_string(directory.join("order")).expect("the order");
    let lines: Vec<&str> = order.lines().collect();
    assert_eq!(lines, ["first", "side starts", "second", "main starts", "hook", "main ends", "side ends"]);
}

/// A running `kubectl port-forward`.
struct Forwarded(Child);

impl Drop for Forwarded {
    fn drop(&mut self) {
        // It may have exited by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn kubectl_reaches_into_pods(cluster: &Cluster) {
    let overrides = r#"{"spec":{"nodeName":"node-2","terminationGracePeriodSeconds":0}}"#;
    let script = "mkdir -p /www; echo page > /www/index.html; echo said; echo more; exec httpd -f -p 8080 -h /www";
    let image = format!("--image={IMAGE}");
    cluster.kubectl(&["run", "shell", &image, "--overrides", overrides, "--command", "--", "sh", "-c", script]);
    cluster.kubectl(&["create", "deployment", "web", &image, "--replicas=4", "--", "sleep", "1000"]);
    cluster.wait_for("the pod to be ready", || cluster.ready_pods("run=shell") == 1);
    cluster.wait_for("the deployment", || cluster.ready_pods("app=web") == 4);
    let nodes = cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.nodeName}"]);
    assert!(nodes.contains("node-1") && nodes.contains("node-2"), "{nodes}");

    // Ready only means started here.
    let listens = ["exec", "shell", "--", "sh", "-c", "nc -w 1 127.0.0.1 8080 </dev/null"];
    cluster.wait_for("the pod to listen", || cluster.try_kubectl(&listens).is_ok());
    cluster.wait_for("all that it said", || cluster.kubectl(&["logs", "shell"]) == "said\nmore");
    assert_eq!(cluster.kubectl(&["logs", "shell", "--tail=1"]), "more");
    assert_eq!(cluster.kubectl(&["exec", "shell", "--", "cat", "/www/index.html"]), "page");
    assert_eq!(cluster.kubectl_with(&["exec", "-i", "shell", "--", "cat"], "through").as_deref(), Ok("through"));
    let failed = cluster.try_kubectl(&["exec", "shell", "--", "sh", "-c", "exit 7"]).expect_err("a failure");
    assert!(failed.contains("exit code 7"), "{failed}");

    let mut command = cluster.kubectl_command(&["port-forward", "pod/shell", ":8080"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("kubectl runs");
    let mut line = String::new();
    // It logs every connection, and exits when nobody reads.
    let mut output = BufReader::new(child.stdout.take().expect("its output"));
    output.read_line(&mut line).expect("a line");
    let _forwarded = Forwarded(child);
    let port: u16 =
        line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).expect("a port");
    let page = cluster.nodes[0].host.within(|| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("the forwarded port");
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("a request");
        let mut response = Vec::new();
        // Received bytes count: kubectl may reset the connection once the pod has closed it.
        let _ = stream.read_to_end(&mut response);
        String::from_utf8_lossy(&response).into_owned()
    });
    assert!(page.ends_with("page\n"), "{page}");
}
