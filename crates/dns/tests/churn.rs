//! Names while services and endpoints come, change and go: every answer must be one that was true between the moment the
//! server had heard of it and the moment the answer came.

// The stand-in for the API is the network's; not all of it is needed here.
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

const PATIENCE: Duration = Duration::from_secs(10);
const ROUND: &str = "round";
const ROUNDS: usize = 2000;
/// Changes that may be under way at once.
const AHEAD: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Truth {
    Addresses(BTreeSet<Ipv4Addr>),
    NoSuchName,
    NoData,
}

/// What is true of a name, state by state.
struct Subject {
    name: &'static str,
    states: Mutex<Vec<Truth>>,
    /// The last state that the server has heard of.
    heard: AtomicUsize,
}

impl Subject {
    fn new(name: &'static str, first: Truth) -> Self {
        Self { name, states: Mutex::new(vec![first]), heard: AtomicUsize::new(0) }
    }

    /// Says what will be true, and waits while too much is under way. Gives the state's number.
    fn announce(&self, truth: Truth) -> usize {
        let number = {
            let mut states = self.states.lock().unwrap();
            states.push(truth);
            states.len() - 1
        };
        let deadline = Instant::now() + PATIENCE;
        while self.heard.load(Ordering::SeqCst) + AHEAD < number {
            assert!(Instant::now() < deadline, "{} is at state {number}, and nobody hears of it", self.name);
            std::thread::yield_now();
        }
        number
    }

    fn check(&self, asker: &mut Asker) {
        let from = self.heard.load(Ordering::SeqCst);
        let answer = read_answer(&asker.ask(&query(&format!("{}.n.svc.cluster.local", self.name), A)));
        let states = self.states.lock().unwrap();
        let possible = &states[from..];
        assert!(possible.contains(&answer), "{} is said to be {answer:?}, but may be {possible:?}", self.name);
    }
}

struct Subjects {
    /// Comes, moves and goes.
    fleeting: Subject,
    /// Headless: its endpoints change.
    headless: Subject,
    /// Leads elsewhere and back.
    turning: Subject,
    /// Stays as it is, while its endpoints change.
    steady: Subject,
}

impl Subjects {
    fn all(&self) -> [&Subject; 4] {
        [&self.fleeting, &self.headless, &self.turning, &self.steady]
    }

    fn hear(&self, name: &str, meta: &ObjectMeta, is_gone: bool) {
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

/// Some addresses of four, none of them at times.
fn some(round: usize) -> BTreeSet<Ipv4Addr> {
    (0..4).filter(|bit| round >> bit & 1 == 1).map(|bit| Ipv4Addr::new(10, 244, 0, bit)).collect()
}

/// Changes what the subjects are, on threads of their own, until all rounds are over.
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
                // The service itself changes as well, in ways that no name shows.
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

struct Asker {
    server: SocketAddr,
    datagrams: UdpSocket,
    /// Every so often the question goes by a stream.
    count: usize,
}

impl Asker {
    fn new(server: SocketAddr) -> Self {
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        datagrams.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { server, datagrams, count: 0 }
    }

    fn ask(&mut self, question: &[u8]) -> Vec<u8> {
        self.count += 1;
        if self.count.is_multiple_of(50) {
            return self.ask_by_stream(question).unwrap();
        }
        let mut answer = [0; 4096];
        self.datagrams.send_to(question, self.server).unwrap();
        let length = self.datagrams.recv(&mut answer).expect("an answer");
        answer[..length].to_vec()
    }

    fn ask_by_stream(&self, question: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.server)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let framed = [&u16::try_from(question.len()).unwrap().to_be_bytes(), question].concat();
        stream.write_all(&framed)?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }
}

/// What an answer says of addresses. One that fails is no answer.
fn read_answer(bytes: &[u8]) -> Truth {
    match bytes[3] & 15 {
        0 => {}
        3 => return Truth::NoSuchName,
        code => panic!("an answer with code {code}"),
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
        let deadline = Instant::now() + PATIENCE;
        let mut first = Asker::new(listen);
        while first.ask_by_stream(&query("steady.n.svc.cluster.local", A)).is_err() {
            assert!(Instant::now() < deadline, "no answer");
        }
        // Whoever comes later is told later: what these hear of, the server knows already.
        let (services, slices) = (informers.of::<Service>(), informers.of::<EndpointSlice>());
        let told = Arc::clone(&subjects);
        services.on_change(move |change| {
            let meta = &change.latest().metadata;
            told.hear(meta.name.as_deref().unwrap_or_default(), meta, matches!(change, Change::Deleted(_)));
        });
        let told = Arc::clone(&subjects);
        slices.on_change(move |change| told.hear("headless", &change.latest().metadata, false));
        let is_over = AtomicBool::new(false);
        let count = std::thread::scope(|scope| {
            let askers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut asker = Asker::new(listen);
                        while !is_over.load(Ordering::Relaxed) {
                            subjects.all().into_iter().for_each(|subject| subject.check(&mut asker));
                            let nobody = read_answer(&asker.ask(&query("nobody.n.svc.cluster.local", A)));
                            assert_eq!(nobody, Truth::NoSuchName);
                            assert_eq!(read_answer(&asker.ask(&query("n.svc.cluster.local", A))), Truth::NoData);
                        }
                        asker.count
                    })
                })
                .collect();
            let churned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| churn(&api, &subjects)));
            is_over.store(true, Ordering::Relaxed);
            let count: usize = askers.into_iter().map(|asker| asker.join().unwrap()).sum();
            churned.unwrap();
            count
        });
        // When nothing is under way any more, only the last state is right.
        for subject in subjects.all() {
            let last = subject.states.lock().unwrap().len() - 1;
            let deadline = Instant::now() + PATIENCE;
            while subject.heard.load(Ordering::SeqCst) < last {
                assert!(Instant::now() < deadline, "the last change is never heard of");
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
