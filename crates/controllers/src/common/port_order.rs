//! The order of the ports in endpoints: by a hash of each port's text form. Clients see that order, so it equals that of
//! Kubernetes though any other would do.

use k8s_openapi::api::core::v1::EndpointPort;
use k8s_openapi::api::discovery::v1::EndpointPort as SlicePort;

use super::hash::fnv1a_128;

/// Sort key of a port of an Endpoints object.
pub fn in_endpoints(port: &EndpointPort) -> u128 {
    let text = format!(
        "(v1.EndpointPort){{Name:(string){} Port:(int32){} Protocol:(v1.Protocol){} AppProtocol:(*string){}}}",
        port.name.as_deref().unwrap_or_default(),
        port.port,
        port.protocol.as_deref().unwrap_or_default(),
        port.app_protocol.as_deref().unwrap_or(NOTHING)
    );
    fnv1a_128(text.as_bytes())
}

/// Sort key of a port of an EndpointSlice.
pub fn in_slice(port: &SlicePort) -> u128 {
    let number = port.port.map(|number| number.to_string());
    let text = format!(
        "(v1.EndpointPort){{Name:(*string){} Protocol:(*v1.Protocol){} Port:(*int32){} AppProtocol:(*string){}}}",
        port.name.as_deref().unwrap_or(NOTHING),
        port.protocol.as_deref().unwrap_or(NOTHING),
        number.as_deref().unwrap_or(NOTHING),
        port.app_protocol.as_deref().unwrap_or(NOTHING)
    );
    fnv1a_128(text.as_bytes())
}

const NOTHING: &str = "<nil>";

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in which Kubernetes v1.36 lists the ports of services created with them in either order.
    #[test]
    fn ports_are_listed_as_by_kubernetes() {
        // (name, port, protocol, application protocol)
        type Row = (&'static str, i32, &'static str, Option<&'static str>);
        let in_slices: [[Row; 2]; 3] = [
            [("adm", 9090, "TCP", None), ("web", 8080, "TCP", None)],
            [("web", 8081, "TCP", None), ("adm", 9090, "TCP", None)],
            [("http", 8080, "TCP", None), ("dns", 53, "UDP", Some("dns"))],
        ];
        for rows in in_slices {
            let [first, second] = rows.map(|(name, port, protocol, speaks)| {
                in_slice(&SlicePort {
                    name: Some(name.to_owned()),
                    port: Some(port),
                    protocol: Some(protocol.to_owned()),
                    app_protocol: speaks.map(str::to_owned),
                })
            });
            assert!(first < second, "{rows:?}");
        }
        let rows: [Row; 2] = [("dns", 53, "UDP", Some("dns")), ("http", 8080, "TCP", None)];
        let [first, second] = rows.map(|(name, port, protocol, speaks)| {
            in_endpoints(&EndpointPort {
                name: Some(name.to_owned()),
                port,
                protocol: Some(protocol.to_owned()),
                app_protocol: speaks.map(str::to_owned),
            })
        });
        assert!(first < second, "{rows:?}");
    }
}
