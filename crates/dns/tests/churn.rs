//! Resolves names while Services and endpoints are created, changed and deleted: every response must match a state that was
//! current between the server's last known update and the arrival of the response.

// The fake API belongs to the network crate; not all of it is used here.
#[allow(dead_code)]
#[path = "../../network/tests/kernel/api.rs"]
mod api;
mod common;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::Change;
use serde_json::{Value, json};

use api::{Api, NAMESPACES, SERVICES, SLICES};
use common::{A, free_address, query, upstream};

const TIMEOUT: Duration = Duration::from_secs(10);
const ROUND: &str = "round";
const ROUNDS: usize = 2000;
/// Changes that may be in flight at once.
const AHEAD: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Truth {
    Addresses(BTreeSet<Ipv4Addr>),
    NoSuchName,
    NoData,
}

/// The states of a name, in order.
struct Subject {
    name: &'static str,
    states: Mutex<Vec<Truth>>,
    /// The last state that the server has received.
    heard: AtomicUsize,
}

impl Subject {
    fn new(name: &'static str, first: Truth) -> Self {
        Self { name, states: Mutex::new(vec![first]), heard: AtomicUsize::new(0) }
    }

    /// Records the next state, and waits while too many are in flight. Returns its index.
    fn announce(&self, truth: Truth) -> usize {
        let number = {
            let mut states = self.states.lock().unwrap();
            states.push(truth);
            states.len() - 1
        };
        let deadline = Instant::now() + TIMEOUT;
        while self.heard.load(Ordering::SeqCst) + AHEAD < number {
            assert!(Instant::now() < deadline, "{} is at state {number}, and nobody hears of it", self.name);
            std::thread::yield_now();
        }
        number
    }

    fn check(&self, client: &mut Client) {
        let from = self.heard.load(Ordering::SeqCst);
        let response = read_response(&client.ask(&query(&format!("{}.n.svc.cluster.local", self.name), A)));
        let states = self.states.lock().unwrap();
        let possible = &states[from..];
        assert!(possible.contains(&response), "{} is said to be {response:?}, but may be {possible:?}", self.name);
    }
}

struct Subjects {
    /// Created, moved and deleted.
    fleeting: Subject,
    /// Headless; its endpoints change.
    headless: Subject,
    /// Alternates between an external name and a cluster IP.
    turning: Subject,
    /// Constant, while its endpoints change.
    steady: Subject,
}

impl Subjects {
    fn all(&self) -> [&Subject; 4] {
        [&self.fleeting, &self.headless, &self.turning, &self.steady]
    }

    fn receive(&self, name: &str, meta: &ObjectMeta, is_gone: bool) {
        let round = meta.annotations.as_ref().and_then(|annotations| annotations.get(ROUND));
        let round: Option<usize> = round.and_then(|text| text.parse().ok());
        if let (Some(round), Some(subject)) = (round, self.all().into_iter().find(|subject| subject.name == name)) {
            subject.heard.fetch_max(round + usize::from(is_gone), Ordering::SeqCst);
        }
    }
}

fn one(address: [u8; 4]) -> Truth {
    Truth::Addresses(BTreeSet::from([address.into()]))
}

fn metadata(name: &str, round: Option<usize>) -> Value {
    let annotations = round.map(|round| json!({ROUND: round.to_string()}));
    json!({"name": name, "namespace": "n", "annotations": annotations})
}

fn service(name: &str, address: &str, round: Option<usize>) -> Value {
    json!({"metadata": metadata(name, round), "spec": {"clusterIP": address, "clusterIPs": [address],
        "ports": [{"name": "http", "port": 80}]}})
}

fn slice(service: &str, addresses: &BTreeSet<Ipv4Addr>, round: Option<usize>) -> Value {
    let mut metadata = metadata(&format!("{service}-1"), round);
    metadata["labels"] = json!({"kubernetes.io/service-name": service});
    let endpoints: Vec<Value> =
        addresses.iter().map(|address| json!({"addresses": [address], "conditions": {"ready": true}})).collect();
    json!({"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "http", "port": 80}]})
}

/// A subset of four addresses, sometimes empty.
fn some(round: usize) -> BTreeSet<Ipv4Addr> {
    (0..4).filter(|bit| round >> bit & 1 == 1).map(|bit| Ipv4Addr::new(10, 244, 0, bit)).collect()
}

/// Changes the subjects on separate threads until all rounds are over.
fn churn(api: &Api, subjects: &Subjects) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let subject = &subjects.fleeting;
            for round in 0..ROUNDS {
                let addresses = [[10, 96, 1, (round % 200) as u8], [10, 96, 2, (round % 200) as u8]];
                for address in addresses {
                    let number = subject.announce(one(address));
                    api.put(SERVICES, service(subject.name, &Ipv4Addr::from(address).to_string(), Some(number)));
                }
                subject.announce(Truth::NoSuchName);
                api.delete(SERVICES, "n", subject.name);
            }
        });
        scope.spawn(|| {
            let subject = &subjects.headless;
            for round in 0..ROUNDS {
                let addresses = some(round);
                let truth = match addresses.is_empty() {
                    true => Truth::NoSuchName,
                    false => Truth::Addresses(addresses.clone()),
                };
                let number = subject.announce(truth);
                api.put(SLICES, slice(subject.name, &addresses, Some(number)));
                // The Service itself changes as well, without an effect on its name.
                api.put(SERVICES, service(subject.name, "None", None));
            }
        });
        scope.spawn(|| {
            let subject = &subjects.turning;
            for round in 0..ROUNDS {
                let number = subject.announce(one([192, 0, 2, 1]));
                let target = format!("away{round}.example.org");
                api.put(
                    SERVICES,
                    json!({"metadata": metadata(subject.name, Some(number)),
                        "spec": {"type": "ExternalName", "externalName": target}}),
                );
                let number = subject.announce(one([10, 96, 0, 3]));
                api.put(SERVICES, service(subject.name, "10.96.0.3", Some(number)));
            }
        });
        scope.spawn(|| {
            for round in 0..ROUNDS {
                for name in [subjects.fleeting.name, subjects.turning.name, subjects.steady.name] {
                    match round % 5 {
                        4 => api.delete(SLICES, "n", &format!("{name}-1")),
                        _ => api.put(SLICES, slice(name, &some(round), None)),
                    }
                }
            }
        });
    });
}

struct Client {
    server: SocketAddr,
    datagrams: UdpSocket,
    /// Some queries are sent over TCP.
    count: usize,
}

impl Client {
    fn new(server: SocketAddr) -> Self {
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        datagrams.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { server, datagrams, count: 0 }
    }

    fn ask(&mut self, question: &[u8]) -> Vec<u8> {
        self.count += 1;
        if self.count.is_multiple_of(50) {
            return self.query_over_tcp(question).unwrap();
        }
        let mut response = [0; 4096];
        self.datagrams.send_to(question, self.server).unwrap();
        let length = self.datagrams.recv(&mut response).expect("an response");
        response[..length].to_vec()
    }

    fn query_over_tcp(&self, question: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.server)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let framed = [&u16::try_from(question.len()).unwrap().to_be_bytes(), question].concat();
        stream.write_all(&framed)?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut response = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut response)?;
        Ok(response)
    }
}

/// The addresses in a response. Panics on an error code.
fn read_response(bytes: &[u8]) -> Truth {
    match bytes[3] & 15 {
        0 => {}
        3 => return Truth::NoSuchName,
        code => panic!("an response with code {code}"),
    }
    let number = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    let after_name = |mut at: usize| loop {
        match bytes[at] {
            0 => return at + 1,
            192.. => return at + 2,
            length => at += usize::from(length) + 1,
        }
    };
    let mut at = after_name(12) + 4;
    let mut addresses = BTreeSet::new();
    for _ in 0..number(6) {
        at = after_name(at);
        let (kind, length) = (number(at), number(at + 8));
        let data = &bytes[at + 10..at + 10 + length];
        if let (1, Ok(address)) = (kind, <[u8; 4]>::try_from(data)) {
            addresses.insert(address.into());
        }
        at += 10 + length;
    }
    if addresses.is_empty() { Truth::NoData } else { Truth::Addresses(addresses) }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_right_while_services_churn() {
    let (forwarder, asked_upstream) = upstream();
    let subjects = Arc::new(Subjects {
        fleeting: Subject::new("fleeting", Truth::NoSuchName),
        headless: Subject::new("headless", Truth::NoSuchName),
        turning: Subject::new("turning", one([10, 96, 0, 3])),
        steady: Subject::new("steady", one([10, 96, 0, 4])),
    });
    let api = Api::default();
    api.put(NAMESPACES, json!({"metadata": {"name": "n"}}));
    api.put(SERVICES, service("headless", "None", None));
    api.put(SERVICES, service("turning", "10.96.0.3", None));
    api.put(SERVICES, service("steady", "10.96.0.4", None));
    let listen = free_address();
    let settings = knarr_dns::Settings {
        listen: vec![listen],
        domain: "cluster.local".into(),
        forwarders: vec![knarr_dns::Upstream(forwarder)],
        stub_domains: vec![],
    };
    let informers = api.informers();
    tokio::spawn(knarr_dns::run(informers.clone(), settings));
    let work = tokio::task::spawn_blocking(move || {
        let deadline = Instant::now() + TIMEOUT;
        let mut first = Client::new(listen);
        while first.query_over_tcp(&query("steady.n.svc.cluster.local", A)).is_err() {
            assert!(Instant::now() < deadline, "no response");
        }
        // Handlers run in order of subscription: what these receive, the server has received already.
        let (services, slices) = (informers.of::<Service>(), informers.of::<EndpointSlice>());
        let handler = Arc::clone(&subjects);
        services.on_change(move |change| {
            let meta = &change.latest().metadata;
            handler.receive(meta.name.as_deref().unwrap_or_default(), meta, matches!(change, Change::Deleted(_)));
        });
        let handler = Arc::clone(&subjects);
        slices.on_change(move |change| handler.receive("headless", &change.latest().metadata, false));
        let is_over = AtomicBool::new(false);
        let count = std::thread::scope(|scope| {
            let askers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut client = Client::new(listen);
                        while !is_over.load(Ordering::Relaxed) {
                            subjects.all().into_iter().for_each(|subject| subject.check(&mut client));
                            let nobody = read_response(&client.ask(&query("nobody.n.svc.cluster.local", A)));
                            assert_eq!(nobody, Truth::NoSuchName);
                            assert_eq!(read_response(&client.ask(&query("n.svc.cluster.local", A))), Truth::NoData);
                        }
                        client.count
                    })
                })
                .collect();
            let churned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| churn(&api, &subjects)));
            is_over.store(true, Ordering::Relaxed);
            let count: usize = askers.into_iter().map(|client| client.join().unwrap()).sum();
            churned.unwrap();
            count
        });
        // Once nothing is in flight, only the last state is right.
        for subject in subjects.all() {
            let last = subject.states.lock().unwrap().len() - 1;
            let deadline = Instant::now() + TIMEOUT;
            while subject.heard.load(Ordering::SeqCst) < last {
                assert!(Instant::now() < deadline, "the last change never arrives");
                std::thread::yield_now();
            }
            subject.check(&mut first);
        }
        println!("{count} answers while services changed {} times", ROUNDS * 10);
    });
    work.await.unwrap();
    for question in asked_upstream.lock().unwrap().iter() {
        assert!(!question.windows(7).any(|part| part == b"cluster"), "a name of the cluster left it");
    }
}
