//! The gRPC client of a KMS plugin, on a runtime of its own: it works wherever the configuration was parsed.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusResponse {
    #[prost(string, tag = "1")]
    pub version: String,
    #[prost(string, tag = "2")]
    pub healthz: String,
    #[prost(string, tag = "3")]
    pub key_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
    #[prost(string, tag = "2")]
    pub uid: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    pub key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    pub annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DecryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub key_id: String,
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DecryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
}

/// Larger messages have no place in this protocol.
const MAX_MESSAGE: usize = 1 << 20;

pub struct KmsClient {
    channel: Channel,
    timeout: Duration,
    runtime: Option<Runtime>,
}

impl Drop for KmsClient {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl KmsClient {
    pub fn new(endpoint: &str, timeout: Duration) -> Result<KmsClient, String> {
        let path = endpoint.strip_prefix("unix://").filter(|path| path.starts_with('/') || path.starts_with('@'));
        let Some(path) = path.map(PathBuf::from) else {
            return Err(format!("unsupported scheme of {endpoint:?} for remote KMS provider"));
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kms")
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let entered = runtime.enter();
        let channel = Endpoint::from_static("http://kms.invalid").connect_with_connector_lazy(tower::service_fn(
            move |_: http::Uri| {
                let path = path.clone();
                async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
            },
        ));
        drop(entered);
        Ok(KmsClient { channel, timeout, runtime: Some(runtime) })
    }

    /// Runs a task on the client's runtime.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<JoinHandle<()>> {
        self.runtime.as_ref().map(|runtime| runtime.spawn(task))
    }

    pub async fn status(&self) -> Result<StatusResponse, String> {
        self.call("/v2.KeyManagementService/Status", StatusRequest {}).await
    }

    pub async fn encrypt(&self, plaintext: Vec<u8>) -> Result<EncryptResponse, String> {
        let uid = uuid::Uuid::new_v4().to_string();
        self.call("/v2.KeyManagementService/Encrypt", EncryptRequest { plaintext, uid }).await
    }

    pub async fn decrypt(
        &self,
        ciphertext: Vec<u8>,
        key_id: String,
        annotations: BTreeMap<String, Vec<u8>>,
    ) -> Result<Vec<u8>, String> {
        let uid = uuid::Uuid::new_v4().to_string();
        let request = DecryptRequest { ciphertext, uid, key_id, annotations };
        let response: DecryptResponse = self.call("/v2.KeyManagementService/Decrypt", request).await?;
        Ok(response.plaintext)
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, String>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        let exchange = async {
            grpc.ready().await.map_err(|error| format!("rpc error: code = Unavailable desc = {error}"))?;
            let codec: ProstCodec<Q, A> = ProstCodec::default();
            let response = grpc.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await;
            response
                .map(tonic::Response::into_inner)
                .map_err(|status| format!("rpc error: code = {:?} desc = {}", status.code(), status.message()))
        };
        match tokio::time::timeout(self.timeout, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Err("rpc error: code = DeadlineExceeded desc = context deadline exceeded".to_owned()),
        }
    }
}
