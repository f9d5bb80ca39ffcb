//! Services and ingresses as seen by an outsider: client addresses, and lost requests when pods, Knarr or probes fail under
//! load.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::harness::{self, Cluster, IMAGE, Options, TIMEOUT, TestHost, plain};

const TRY: Duration = Duration::from_secs(1);
/// How long the ingress may be unavailable when Knarr is killed. Unoptimised builds start several times more slowly, and
/// so do loaded hosts.
const BACK: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 });

/// Pods that return their name, the client's address and the host; port 9000 echoes.
fn web(replicas: usize, more: &str) -> String {
    let script = r#"printf '#!/bin/sh\necho\necho $HOSTNAME $REMOTE_ADDR $HTTP_X_FORWARDED_FOR\n' > /www/cgi-bin/who"#;
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 2
{more}
      containers:
      - name: web
        image: {IMAGE}
        command: ["sh", "-c"]
        args: 
        - |
          mkdir -p /www/cgi-bin; {script}; busybox chmod 755 /www/cgi-bin/who
          nc -ll -p 9000 -e cat &
          touch /tmp/ready
          exec httpd -f -p 8080 -h /www
        readinessProbe: {{exec: {{command: ["cat", "/tmp/ready"]}}, periodSeconds: 1, failureThreshold: 1}}
---
{}
---
{}
---
{}
---
{}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{name: web}}
spec: {{rules: [{{host: web.example, http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: anywhere, port: {{number: 80}}}}}}}}]}}}}]}}
"#,
        service("anywhere", "NodePort", "Cluster", 30_080),
        service("near", "NodePort", "Local", 30_081),
        service("balanced", "LoadBalancer", "Cluster", 30_082),
        service("balanced-near", "LoadBalancer", "Local", 30_083),
    )
}

fn service(name: &str, kind: &str, policy: &str, port: u16) -> String {
    let echo = port + 100;
    format!(
        r#"apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  type: {kind}
  externalTrafficPolicy: {policy}
  selector: {{app: web}}
  ports:
  - {{name: http, port: 80, targetPort: 8080, nodePort: {port}}}
  - {{name: echo, port: 9000, nodePort: {echo}}}"#
    )
}

fn cluster(nodes: usize) -> Cluster {
    Cluster::with(Options { nodes, server: vec!["--load-balancer-pool", "10.77.9.0/24"], ..Options::default() })
}

/// The response of a pod.
fn ask(address: SocketAddr, host: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TRY)?;
    stream.set_read_timeout(Some(TRY * 2))?;
    write!(stream, "GET /cgi-bin/who HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let is_good = response.split(' ').nth(1) == Some("200");
    let said = response.split("\r\n\r\n").nth(1).or_else(|| response.split("\n\n").nth(1)).unwrap_or_default().trim();
    if is_good && !said.is_empty() { Ok(said.to_owned()) } else { Err(std::io::Error::other(response)) }
}

/// Runs on a thread within a host's network.
fn on<T: Send>(host: &TestHost, work: impl FnOnce() -> T + Send) -> T {
    let file = std::fs::File::open(host.path()).expect("its namespace");
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            nix::sched::setns(&file, nix::sched::CloneFlags::CLONE_NEWNET).expect("its namespace");
            work()
        });
        thread.join().expect("the work on that host")
    })
}

/// Requests sent one after another for as long as `work` takes.
#[derive(Debug, Default)]
struct Load {
    asked: usize,
    failed: Vec<String>,
    /// The longest time without a response.
    gap: Duration,
}

fn under_load<T: Send>(
    outside: &TestHost,
    address: SocketAddr,
    host: &str,
    work: impl FnOnce() -> T + Send,
) -> (Load, T) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            on(outside, || {
                let mut load = Load::default();
                let mut responded = Instant::now();
                while !is_over.load(Ordering::Relaxed) {
                    load.asked += 1;
                    match ask(address, host) {
                        Ok(_) => {
                            load.gap = load.gap.max(responded.elapsed());
                            responded = Instant::now();
                        }
                        Err(error) => load.failed.push(error.to_string()),
                    }
                }
                load
            })
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Ordering::Relaxed);
        let load = asking.join().expect("the load");
        (load, done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn address(text: &str, port: u16) -> SocketAddr {
    SocketAddr::new(text.parse().expect("an address"), port)
}

#[test]
fn an_outsider_reaches_pods_and_is_seen_by_its_address_where_policy_says_so() {
    if !harness::is_possible() {
        return;
    }
    let cluster = cluster(2);
    let outside = cluster.outsider(50);
    cluster.apply(&web(1, "      nodeName: node-2"));
    cluster.wait_for("the pod to be ready", || cluster.ready_pods("app=web") == 1);
    let [first, second] = [0, 1].map(|index: usize| cluster.nodes[index].host.address.clone());
    let balancer = |name: &str| {
        let path = "jsonpath={.status.loadBalancer.ingress[0].ip}";
        let mut found = String::new();
        cluster.wait_for(&format!("an address for {name}"), || {
            found = cluster.kubectl(&["get", "service", name, "-o", path]);
            !found.is_empty()
        });
        assert!(found.starts_with("10.77.9."), "{found} is of the pool");
        found
    };
    // The address, the name, and whether the pod sees the outsider's own address.
    for (to, is_seen) in [
        (address(&first, 30_080), false),
        (address(&second, 30_080), false),
        (address(&second, 30_081), true),
        (address(&balancer("balanced"), 80), false),
        (address(&balancer("balanced-near"), 80), true),
    ] {
        let mut said = String::new();
        cluster.wait_for(&format!("an response from {to}"), || {
            said = on(&outside, || ask(to, "any")).unwrap_or_default();
            !said.is_empty()
        });
        let seen = plain(said.split(' ').nth(1).unwrap_or_default());
        assert_eq!(seen == outside.address, is_seen, "{to} says {said}");
    }
    let elsewhere = on(&outside, || ask(address(&first, 30_081), "any"));
    assert!(elsewhere.is_err(), "a node without the pod: {elsewhere:?}");

    for node in [&first, &second] {
        let mut said = String::new();
        cluster.wait_for(&format!("an response through the ingress of {node}"), || {
            said = on(&outside, || ask(address(node, 80), "web.example")).unwrap_or_default();
            !said.is_empty()
        });
        let forwarded_for = plain(said.split(' ').nth(2).unwrap_or_default());
        assert_eq!(forwarded_for, outside.address, "the forwarded client address: {said}");
    }
    cluster.wait_for("the ingress to name both nodes", || {
        let path = "jsonpath={.status.loadBalancer.ingress[*].ip}";
        cluster.kubectl(&["get", "ingress", "web", "-o", path]) == format!("{first} {second}")
    });

    let path = "jsonpath={.spec.healthCheckNodePort}";
    let port = cluster.kubectl(&["get", "service", "balanced-near", "-o", path]);
    // The health port is updated shortly after the rules.
    for (page, expected) in [
        (format!("http://{second}:{port}/"), "\"localEndpoints\":1"),
        (format!("http://{first}:10256/healthz"), "lastUpdated"),
    ] {
        let mut said = None;
        cluster.wait_for(&format!("{page} to say {expected}"), || {
            said = outside.fetch(&page);
            said.as_ref().is_some_and(|text| text.contains(expected))
        });
    }
    let unhealthy = outside.fetch(&format!("http://{first}:{port}/"));
    assert_eq!(unhealthy, None, "a node without a pod is unhealthy");
    let dns = cluster.kubectl(&["get", "service", "-n", "kube-system", "kube-dns", "-o", "jsonpath={.spec.clusterIP}"]);
    assert_eq!(dns, "10.96.0.10");
}

#[test]
fn connections_outlive_knarr_and_new_ones_succeed() {
    if !harness::is_possible() {
        return;
    }
    let mut cluster = cluster(2);
    let outside = cluster.outsider(50);
    cluster.apply(&web(2, ""));
    cluster.wait_for("the pods to be ready", || cluster.ready_pods("app=web") == 2);
    for index in [1, 0] {
        let node = cluster.nodes[index].host.address.clone();
        let to = address(&node, 30_080);
        cluster.wait_for("the node port to response", || on(&outside, || ask(to, "any")).is_ok());
        let mut kept = on(&outside, || TcpStream::connect(address(&node, 30_180))).expect("a connection");
        kept.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        echo(&mut kept, "before");
        let name = cluster.nodes[index].name.clone();
        let (load, _) = under_load(&outside, to, "any", || {
            cluster.nodes[index].kill();
            let down = Instant::now();
            while down.elapsed() < TRY {
                echo(&mut kept, "while it is down");
            }
            cluster.nodes[index].start();
            cluster.wait_for_nodes(2);
            let healthz = format!("http://{node}:10256/healthz");
            cluster.wait_for("the proxy to be back", || outside.fetch(&healthz).is_some());
            echo(&mut kept, "after");
        });
        println!(
            "{name} killed: {} of {} new connections failed, longest gap {:?}",
            load.failed.len(),
            load.asked,
            load.gap
        );
        assert!(load.failed.is_empty(), "{load:?}");
        assert!(load.gap < TRY, "{load:?}");
    }
}

#[test]
fn every_node_serves_ingresses_with_certificates_and_restarts_quickly() {
    if !harness::is_possible() {
        return;
    }
    let mut cluster = cluster(2);
    let outside = cluster.outsider(50);
    cluster.apply(&web(2, ""));
    let directory = tempfile::tempdir().expect("a directory");
    let authority = directory.path().join("tls.crt").to_string_lossy().into_owned();
    let secret = |verb: &str| {
        let made = rcgen::generate_simple_self_signed(["web.example".to_owned()]).expect("a certificate");
        let key = directory.path().join("tls.key");
        std::fs::write(&authority, made.cert.pem()).expect("a file");
        std::fs::write(&key, made.signing_key.serialize_pem()).expect("a file");
        let files = [format!("--cert={authority}"), format!("--key={}", key.display())];
        let mut words = vec!["create", "secret", "tls", "web", &files[0], &files[1]];
        if verb == "replace" {
            words.extend(["--dry-run=client", "-o", "yaml"]);
            cluster.apply(&cluster.kubectl(&words));
        } else {
            cluster.kubectl(&words);
        }
    };
    cluster.kubectl(&[
        "patch",
        "ingress",
        "web",
        "-p",
        r#"{"spec":{"tls":[{"hosts":["web.example"],"secretName":"web"}]}}"#,
    ]);
    cluster.wait_for("the pods to be ready", || cluster.ready_pods("app=web") == 2);
    // Twice: a replaced certificate is served at once.
    for verb in ["create", "replace"] {
        secret(verb);
        for node in &cluster.nodes {
            let to = format!("web.example:443:{}", node.host.address);
            let words = ["curl", "-sf", "--cacert", &authority, "--resolve", &to, "https://web.example/cgi-bin/who"];
            cluster.wait_for(&format!("{verb}: the certificate on {}", node.name), || {
                outside.output(&words).status.success()
            });
        }
    }
    // Nodes can read the secrets that they serve, and no others.
    cluster.kubectl(&["create", "secret", "generic", "private"]);
    for (secret, expected) in [("web", "yes"), ("private", "no")] {
        let name = format!("secret/{secret}");
        let words = ["auth", "can-i", "get", &name, "--as=knarr:node-network:node-2", "--as-group=knarr:node-network"];
        let said = cluster.try_kubectl(&words).unwrap_or_else(|_| "no".to_owned());
        assert_eq!(said, expected, "{name}");
    }
    for index in [1, 0] {
        let to = address(&cluster.nodes[index].host.address, 80);
        let name = cluster.nodes[index].name.clone();
        let (load, _) = under_load(&outside, to, "web.example", || {
            cluster.nodes[index].kill();
            cluster.nodes[index].start();
            cluster.wait_for_nodes(2);
            cluster.wait_for("the ingress to be back", || on(&outside, || ask(to, "web.example")).is_ok());
        });
        println!("{name} killed: {} of {} requests failed, longest gap {:?}", load.failed.len(), load.asked, load.gap);
        assert!(load.gap < BACK, "{name} was away for {:?}: {:?}", load.gap, load.failed.last());
    }
    cluster.kubectl(&["delete", "ingress", "web"]);
    cluster.wait_for("the right to read the secret to go", || {
        cluster.try_kubectl(&["get", "role", "knarr:ingress"]).is_err()
    });
}

fn echo(stream: &mut TcpStream, words: &str) {
    stream.write_all(words.as_bytes()).expect("the connection to live");
    let mut response = vec![0; words.len()];
    stream.read_exact(&mut response).expect("the connection to live");
    assert_eq!(response, words.as_bytes());
}

#[test]
fn no_request_fails_while_pods_are_replaced() {
    if !harness::is_possible() {
        return;
    }
    let cluster = cluster(2);
    let outside = cluster.outsider(50);
    cluster.apply(&web(3, ""));
    cluster.wait_for("the pods to be ready", || cluster.ready_pods("app=web") == 3);
    let to = address(&cluster.nodes[0].host.address, 80);
    cluster.wait_for("the ingress to response", || on(&outside, || ask(to, "web.example")).is_ok());
    let (load, _) = under_load(&outside, to, "web.example", || {
        for round in ["1", "2"] {
            cluster.kubectl(&["set", "env", "deployment/web", &format!("ROUND={round}")]);
            cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]);
        }
    });
    println!("two rollouts: {} of {} requests failed, longest gap {:?}", load.failed.len(), load.asked, load.gap);
    assert!(load.failed.is_empty(), "{load:?}");
}

#[test]
fn a_pod_that_fails_its_probe_gets_no_new_connection() {
    if !harness::is_possible() {
        return;
    }
    let cluster = cluster(2);
    let outside = cluster.outsider(50);
    cluster.apply(&web(2, ""));
    cluster.wait_for("the pods to be ready", || cluster.ready_pods("app=web") == 2);
    let pods = cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"]);
    let failing = pods.split(' ').next().expect("a pod");
    let to = address(&cluster.nodes[0].host.address, 30_080);
    cluster.wait_for("both pods to response", || {
        let responses: Vec<String> = on(&outside, || (0..10).flat_map(|_| ask(to, "any")).collect());
        pods.split(' ').all(|pod| responses.iter().any(|response| response.starts_with(pod)))
    });
    cluster.kubectl(&["exec", failing, "--", "busybox", "rm", "/tmp/ready"]);
    let failed = Instant::now();
    let mut last = Duration::ZERO;
    let mut unready = None;
    cluster.wait_for("the pod to be left alone", || {
        let responses: Vec<String> = on(&outside, || (0..20).flat_map(|_| ask(to, "any")).collect());
        if unready.is_none() && cluster.ready_pods("app=web") == 1 {
            unready = Some(failed.elapsed());
        }
        let is_asked = responses.iter().any(|response| response.starts_with(failing));
        if is_asked {
            last = failed.elapsed();
        }
        !is_asked && responses.len() == 20
    });
    println!(
        "a probe that fails each second: unready seen after {unready:?}, last new connection at most {last:?} after"
    );
    assert!(last < Duration::from_secs(5), "{last:?}");
}
