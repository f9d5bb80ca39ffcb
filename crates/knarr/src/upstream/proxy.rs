//! `kube-proxy`.

use anyhow::bail;
use knarr_component_flags::Given;

use super::translate::Translation;

const MODES: [&str; 4] = ["", "iptables", "ipvs", "nftables"];
const LOCAL_MODES: [&str; 5] = ["", "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"];

pub fn translate(given: &Given) -> anyhow::Result<Translation> {
    let (mode, local) = (given.value("proxy-mode"), given.value("detect-local-mode"));
    if !MODES.contains(&mode.as_str()) {
        bail!(
            "failed validate: KubeProxyConfiguration.Mode.ProxyMode: Invalid value: {mode:?}: must be iptables, ipvs, \
             nftables or blank (blank means the best-available proxy [currently iptables])"
        );
    }
    if !LOCAL_MODES.contains(&local.as_str()) {
        bail!(
            "failed validate: KubeProxyConfiguration.DetectLocalMode: Unsupported value: {local:?}: supported values: \
             \"ClusterCIDR\", \"NodeCIDR\", \"BridgeInterface\", \"InterfaceNamePrefix\", \"\""
        );
    }
    let mut translation = Translation::passing(given);
    for name in ["healthz", "metrics"] {
        let flag = format!("{name}-bind-address");
        translation.set(&flag, &address_and_port(given, &flag, &format!("{name}-port")));
    }
    let addresses = given.values("nodeport-addresses");
    if addresses.iter().any(|address| address == "primary") {
        translation
            .warnings
            .push("--nodeport-addresses=primary has no effect: all addresses serve node ports".to_owned());
    } else {
        translation.set_all("nodeport-addresses", &addresses);
    }
    Ok(translation)
}

/// An address of a flag that may lack its port.
fn address_and_port(given: &Given, flag: &str, port_flag: &str) -> String {
    let address = given.value(flag);
    match address.parse::<std::net::IpAddr>() {
        Ok(ip) => format!("{}", std::net::SocketAddr::new(ip, given.value(port_flag).parse().unwrap_or_default())),
        Err(_) => address,
    }
}
