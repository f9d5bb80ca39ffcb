//! A client of the gRPC health service (grpc.health.v1).

use http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;

/// An error says why the service is not healthy.
pub async fn check(address: &str, port: u16, service: &str) -> Result<(), String> {
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_string() };
    let endpoint = Endpoint::from_shared(format!("http://{host}:{port}")).map_err(|error| error.to_string())?;
    let endpoint =
        endpoint.user_agent(format!("kube-probe/{}", knarr_version::RELEASE)).map_err(|error| error.to_string())?;
    let channel = endpoint.connect().await.map_err(|_| {
        format!("timeout: failed to connect service \"{address}:{port}\" within 1s: context deadline exceeded")
    })?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| error.to_string())?;
    let request = Request::new(HealthCheckRequest { service: service.to_string() });
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    match client.unary(request, path, codec).await {
        Ok(response) if response.get_ref().status == SERVING => Ok(()),
        Ok(response) => Err(format!("service unhealthy (responded with \"{}\")", name(response.get_ref().status))),
        Err(status) if status.code() == Code::Unimplemented => Err(format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
            status.message()
        )),
        Err(status) => Err(format!(
            "error: health rpc probe failed: rpc error: code = {:?} desc = {}",
            status.code(),
            status.message()
        )),
    }
}

fn name(status: i32) -> &'static str {
    match status {
        0 => "UNKNOWN",
        2 => "NOT_SERVING",
        3 => "SERVICE_UNKNOWN",
        _ => "UNDEFINED",
    }
}
