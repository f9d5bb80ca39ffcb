//! An aggregated group version and the connection to its server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use knarr_api::value::Read;
use serde_json::Value;

use super::Aggregation;
use super::forward::user_headers;
use crate::outbound::{Destination, Identity, Trust, client_config, decode_bundle, dial};
use crate::request::{GROUP_MASTERS, User};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq)]
pub struct Remote {
    pub name: String,
    pub group: String,
    pub version: String,
    pub group_priority: i64,
    pub version_priority: i64,
    pub destination: Destination,
    pub trust: Trust,
    pub available: bool,
    /// Its resources in the aggregated discovery format.
    pub resources: Option<Arc<Value>>,
}

impl Remote {
    /// Reads an APIService; `None` if this server serves the group version itself.
    pub fn read(object: &Value) -> Option<Remote> {
        let spec = object.at(&["spec"]);
        let service = spec.at(&["service"]);
        if !service.is_object() {
            return None;
        }
        let authorities = decode_bundle(spec.text(&["caBundle"])).unwrap_or_default();
        let trust = match spec.flag(&["insecureSkipTLSVerify"]) {
            Some(true) => Trust::Anyone,
            _ => Trust::Authorities(authorities.clone()),
        };
        let conditions = object.items(&["status", "conditions"]);
        let available = conditions
            .iter()
            .any(|condition| condition.text(&["type"]) == "Available" && condition.text(&["status"]) == "True");
        Some(Remote {
            name: object.text(&["metadata", "name"]).to_owned(),
            group: spec.text(&["group"]).to_owned(),
            version: spec.text(&["version"]).to_owned(),
            group_priority: spec.integer(&["groupPriorityMinimum"]).unwrap_or(0),
            version_priority: spec.integer(&["versionPriority"]).unwrap_or(0),
            destination: Destination::of_service(service, authorities),
            trust,
            available,
            resources: None,
        })
    }

    pub fn service(&self) -> (&str, &str) {
        self.destination.service.as_ref().map_or(("", ""), |(namespace, name)| (namespace, name))
    }

    pub fn group_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// Connects with the front-proxy client certificate.
    pub async fn connect(
        &self,
        aggregation: &Aggregation,
        identity: Option<&Identity>,
    ) -> Result<tokio_rustls::client::TlsStream<Box<dyn knarr_tunnel::Stream>>, String> {
        let config = client_config(&self.trust, identity).map_err(|error| error.to_string())?;
        dial(&*aggregation.objects, &aggregation.tunnels, &self.destination, config).await
    }

    /// Requests a document as this server itself.
    pub async fn get(
        &self,
        aggregation: &Aggregation,
        path: &str,
        accept: &'static str,
    ) -> Result<(StatusCode, Bytes), String> {
        let request = async {
            let identity = aggregation.identity();
            let connection = self.connect(aggregation, identity.as_deref()).await?;
            let (mut sender, driver) =
                http1::handshake(TokioIo::new(connection)).await.map_err(|error| error.to_string())?;
            let driving = knarr_supervisor::spawn(driver);
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            let host = HeaderValue::from_str(&self.destination.authority()).map_err(|error| error.to_string())?;
            headers.insert(HOST, host);
            let user = User::named("system:kube-aggregator", &[GROUP_MASTERS]);
            user_headers(&mut headers, &user).map_err(|error| error.to_string())?;
            let mut request = Request::get(path).body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
            *request.headers_mut() = headers;
            let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
            let code = response.status();
            let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
            driving.abort();
            Ok((code, body.map_err(|error| error.to_string())?.to_bytes()))
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
            Ok(result) => result,
            Err(_) => Err("context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_owned()),
        }
    }
}
