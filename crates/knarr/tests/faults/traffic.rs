//! Requests to a Service and an Ingress, one after the other, while servers fail: none of them does.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::harness::{IMAGE, wait_for};
use crate::servers::ThreeServers;

const NODE_PORT: u16 = 30080;
const INGRESS_PORT: u16 = 80;
const TIMEOUT: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(20);

/// One pod on each node, so that requests also cross the network between nodes.
const MANIFEST: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: IMAGE
        command: ["sh", "-c", "echo well > /www/index.html; exec httpd -f -p 8080 -h /www"]
        readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}
"#;

/// A thread that sends requests until it is stopped.
pub struct Traffic {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<Report>,
}

#[derive(Debug, Default)]
pub struct Report {
    pub requests: usize,
    pub failures: Vec<String>,
    pub slowest: Duration,
}

/// Creates the pods, and waits until they are reached in all ways.
pub fn prepare(servers: &ThreeServers) {
    let path = servers.nodes[0].data.with_extension("web.yaml");
    std::fs::write(&path, MANIFEST.replace("IMAGE", IMAGE)).expect("a file");
    servers.kubectl(0, &["apply", "-f", &path.to_string_lossy()]);
    for target in targets(servers) {
        wait_for(&format!("a response from {target}"), || {
            servers.client.within(|| request(target)).is_ok_and(|text| text.contains("well"))
        });
    }
    wait_for("the pods to be ready", || {
        let ready = servers.try_kubectl(0, &["get", "daemonset", "web", "-o", "jsonpath={.status.numberReady}"]);
        ready.is_ok_and(|ready| ready == servers.agents.len().to_string())
    });
}

fn targets(servers: &ThreeServers) -> Vec<SocketAddr> {
    let addresses = servers.agents.iter().map(|agent| agent.host.address.clone());
    let ports = [NODE_PORT, INGRESS_PORT];
    addresses.flat_map(|address| ports.map(|port| format!("{address}:{port}").parse().expect("an address"))).collect()
}

impl Traffic {
    pub fn start(servers: &ThreeServers) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let (stop, targets) = (stopping.clone(), targets(servers));
        let namespace = std::fs::File::open(servers.client.path()).expect("a namespace");
        let thread = std::thread::spawn(move || {
            nix::sched::setns(&namespace, nix::sched::CloneFlags::CLONE_NEWNET).expect("it is entered");
            let mut report = Report::default();
            for target in targets.iter().cycle() {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let started = Instant::now();
                let response = request(*target);
                report.requests += 1;
                report.slowest = report.slowest.max(started.elapsed());
                if !response.as_ref().is_ok_and(|text| text.contains("well")) {
                    report.failures.push(format!("{target}: {response:?}"));
                }
                std::thread::sleep(INTERVAL);
            }
            report
        });
        Self { stopping, thread }
    }

    pub fn finish(self) -> Report {
        self.stopping.store(true, Ordering::SeqCst);
        self.thread.join().expect("the requests end")
    }
}

fn request(target: SocketAddr) -> std::io::Result<String> {
    let mut connection = TcpStream::connect_timeout(&target, TIMEOUT)?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.write_all(b"GET / HTTP/1.1\r\nHost: web.example.org\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    Ok(text)
}
