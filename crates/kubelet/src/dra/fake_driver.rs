//! A DRA driver for tests, on a real socket. It keeps account of what is prepared, and fails as a test wants.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use prost::Message;
use tokio::task::JoinHandle;

use super::messages::{ClaimsRequest, Device, PrepareResponse, PreparedClaim, UnprepareResponse, UnpreparedClaim};
use crate::resources::unary::{Failure, serve};

#[derive(Clone, Debug)]
pub enum Behaviour {
    /// Fails without doing anything.
    Fail,
    /// Says that each claim failed.
    FailClaims,
    /// Does its work and fails nevertheless.
    DoAndFail,
    /// Does its work and never responds.
    DoAndHang,
    /// Never responds.
    Hang,
    /// Responds without the claims.
    Skip,
    /// Responds with a claim that nobody asked for.
    Invent,
}

#[derive(Default)]
pub struct Account {
    /// UIDs of the prepared claims.
    pub prepared: BTreeSet<String>,
    /// The calls in their order.
    pub calls: Vec<String>,
    pub behaviours: HashMap<&'static str, VecDeque<Behaviour>>,
}

pub struct FakeDriver {
    pub account: Arc<Mutex<Account>>,
    pub socket: PathBuf,
    server: JoinHandle<()>,
}

impl FakeDriver {
    /// Starts a driver; what an earlier one at the socket has prepared is given by its account.
    pub async fn start(socket: &Path, account: Arc<Mutex<Account>>) -> Self {
        let (path, own) = (socket.to_path_buf(), account.clone());
        let server = tokio::spawn(async move {
            let served = serve(&path, move |method: String, message| {
                let account = own.clone();
                async move {
                    let request = ClaimsRequest::decode(message).expect("a request");
                    respond(&account, &method, request).await
                }
            });
            served.await.expect("a socket");
        });
        while tokio::net::UnixStream::connect(socket).await.is_err() {
            tokio::task::yield_now().await;
        }
        FakeDriver { account, socket: socket.to_path_buf(), server }
    }

    pub fn stop(self) -> Arc<Mutex<Account>> {
        self.server.abort();
        std::fs::remove_file(&self.socket).expect("the socket");
        self.account.clone()
    }

    pub fn behave(&self, method: &'static str, behaviour: Behaviour) {
        self.account.lock().behaviours.entry(method).or_default().push_back(behaviour);
    }
}

impl Drop for FakeDriver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn respond(account: &Mutex<Account>, path: &str, request: ClaimsRequest) -> Result<Vec<u8>, Failure> {
    let (method, is_prepare) = match path.rsplit('/').next() {
        Some("NodePrepareResources") => ("prepare", true),
        Some("NodeUnprepareResources") => ("unprepare", false),
        _ => return Err(Failure::unknown(path)),
    };
    let behaviour = {
        let mut account = account.lock();
        let names: Vec<&str> = request.claims.iter().map(|claim| claim.name.as_str()).collect();
        account.calls.push(format!("{method} {}", names.join(",")));
        account.behaviours.get_mut(method).and_then(VecDeque::pop_front)
    };
    let does = matches!(behaviour, None | Some(Behaviour::DoAndFail | Behaviour::DoAndHang));
    if does {
        let mut account = account.lock();
        for claim in &request.claims {
            if is_prepare {
                account.prepared.insert(claim.uid.clone())
            } else {
                account.prepared.remove(&claim.uid)
            };
        }
    }
    let mut uids: Vec<String> = request.claims.iter().map(|claim| claim.uid.clone()).collect();
    let error = match behaviour {
        Some(Behaviour::Hang | Behaviour::DoAndHang) => std::future::pending().await,
        Some(Behaviour::Fail | Behaviour::DoAndFail) => return Err(Failure::invalid("failed on demand")),
        Some(Behaviour::FailClaims) => "broken device",
        Some(Behaviour::Skip) => {
            uids.clear();
            ""
        }
        Some(Behaviour::Invent) => {
            uids.push("invented".to_owned());
            ""
        }
        None => "",
    };
    let device = |uid: &str| Device {
        request_names: vec!["r/sub".to_owned()],
        pool_name: "p".to_owned(),
        device_name: "d".to_owned(),
        cdi_device_ids: vec![format!("example.com/gpu={uid}")],
        share_id: None,
    };
    let error = error.to_owned();
    Ok(match is_prepare {
        true => {
            let claim =
                |uid: String| (uid.clone(), PreparedClaim { devices: vec![device(&uid)], error: error.clone() });
            PrepareResponse { claims: uids.into_iter().map(claim).collect() }.encode_to_vec()
        }
        false => {
            let claim = |uid: String| (uid, UnpreparedClaim { error: error.clone() });
            UnprepareResponse { claims: uids.into_iter().map(claim).collect::<BTreeMap<_, _>>().into_iter().collect() }
                .encode_to_vec()
        }
    })
}
