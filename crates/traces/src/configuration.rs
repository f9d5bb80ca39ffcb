//! `TracingConfiguration`: where spans go, and how many are sampled.

use std::time::Duration;

use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

const DEFAULT_ENDPOINT: &str = "localhost:4317";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_RATE: u32 = 1_000_000;
const VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.k8s.io/v1alpha1"];

/// The fields that the file of the API server and the kubelet's configuration share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Configuration {
    #[serde(default)]
    pub api_version: Option<String>,
    #[serde(default)]
    pub kind: Option<String>,
    /// `HOST:PORT`, or `unix:PATH`.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Of spans without a sampled parent.
    #[serde(default)]
    pub sampling_rate_per_million: Option<u32>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigurationError {
    #[error("the tracing configuration cannot be read: {0}")]
    Read(String),
    #[error(
        "the tracing configuration is of kind {kind:?} in {version:?}, not a TracingConfiguration of apiserver.config.k8s.io/v1"
    )]
    Kind { kind: String, version: String },
    #[error(
        "samplingRatePerMillion: Invalid value: {0}: sampling rate per million must be less than or equal to one million"
    )]
    Rate(u32),
    #[error("endpoint: Invalid value: {endpoint:?}: {reason}")]
    Endpoint { endpoint: String, reason: String },
}

impl Configuration {
    /// Reads the file of `--tracing-config-file`.
    pub fn parse(text: &str) -> Result<Configuration, ConfigurationError> {
        let configuration: Configuration =
            serde_yaml_ng::from_str(text).map_err(|error| ConfigurationError::Read(error.to_string()))?;
        let kind = configuration.kind.clone().unwrap_or_default();
        let version = configuration.api_version.clone().unwrap_or_default();
        if kind != "TracingConfiguration" || !VERSIONS.contains(&version.as_str()) {
            return Err(ConfigurationError::Kind { kind, version });
        }
        configuration.validate()?;
        Ok(configuration)
    }

    pub fn validate(&self) -> Result<(), ConfigurationError> {
        if let Some(rate) = self.sampling_rate_per_million.filter(|rate| *rate > MAX_RATE) {
            return Err(ConfigurationError::Rate(rate));
        }
        self.target().map(drop)
    }

    fn target(&self) -> Result<Target, ConfigurationError> {
        let endpoint = self.endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT);
        let invalid = |reason: String| ConfigurationError::Endpoint { endpoint: endpoint.to_owned(), reason };
        let path = endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:"));
        if let Some(path) = path {
            return Ok(Target::Socket(path.to_owned()));
        }
        let address = match endpoint.split_once("://") {
            None => endpoint,
            Some(("dns", address)) => address.trim_start_matches('/'),
            Some((scheme, _)) => {
                return Err(invalid(format!("unsupported scheme: {scheme}. Options are none, dns or unix")));
            }
        };
        let uri: Uri = format!("http://{address}").parse().map_err(|error| invalid(format!("{error}")))?;
        if uri.port().is_none() {
            return Err(invalid("it has no port".to_owned()));
        }
        Ok(Target::Address(uri))
    }

    /// A channel that connects when it is first used, and again when it breaks.
    pub(crate) fn channel(&self) -> Result<Channel, ConfigurationError> {
        self.validate()?;
        Ok(match self.target()? {
            Target::Address(uri) => Endpoint::from(uri).connect_timeout(CONNECT_TIMEOUT).connect_lazy(),
            Target::Socket(path) => {
                // The address is not used.
                let endpoint = Endpoint::from(Uri::from_static("http://collector")).connect_timeout(CONNECT_TIMEOUT);
                endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                    let path = path.clone();
                    async move { UnixStream::connect(path).await.map(TokioIo::new) }
                }))
            }
        })
    }
}

enum Target {
    Address(Uri),
    Socket(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(more: &str) -> String {
        format!("apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n{more}")
    }

    #[test]
    fn files_are_read_strictly() {
        let read =
            Configuration::parse(&file("endpoint: 127.0.0.1:4317\nsamplingRatePerMillion: 500\n")).expect("valid");
        assert_eq!((read.endpoint.as_deref(), read.sampling_rate_per_million), (Some("127.0.0.1:4317"), Some(500)));
        for (text, reason) in [
            (file("colour: red\n"), "colour"),
            (file("samplingRatePerMillion: 1000001\n"), "one million"),
            (file("samplingRatePerMillion: -1\n"), "cannot be read"),
            (file("endpoint: https://x:1\n"), "unsupported scheme: https"),
            (file("endpoint: localhost\n"), "no port"),
            ("kind: Pod\n".to_owned(), "not a TracingConfiguration"),
        ] {
            let error = Configuration::parse(&text).expect_err(&text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        for endpoint in ["unix:/run/otel.sock", "dns://collector:4317", "dns:///collector:4317"] {
            assert!(Configuration::parse(&file(&format!("endpoint: {endpoint}\n"))).is_ok(), "{endpoint}");
        }
    }
}
