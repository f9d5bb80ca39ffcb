//! The query of a request to the kubelet, from that of a connect request.

use crate::route::query::Query;

/// The given parameters of a query.
pub fn same(query: &Query, names: &[&str]) -> String {
    let mut parts = Vec::new();
    for name in names {
        for value in query.all(name) {
            parts.push(format!("{name}={}", encode(value)));
        }
    }
    parts.join("&")
}

/// The ports to forward, in the form that kubelets expect.
pub fn ports(query: &Query) -> String {
    let ports: Vec<String> = query.all("ports").flat_map(|list| list.split(',')).map(encode).collect();
    if ports.is_empty() { String::new() } else { format!("port={}", ports.join(",")) }
}

/// The parameters of exec and attach, with the names that kubelets expect.
pub fn streams(query: &Query) -> String {
    let mut parts: Vec<String> = query.all("command").map(|part| format!("command={}", encode(part))).collect();
    for (name, kubelet_name) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        let default =
            matches!(name, "stdout" | "stderr") && !query.has("stdin") && !query.has("stdout") && !query.has("stderr");
        if query.flag(name).unwrap_or(default) {
            parts.push(format!("{kubelet_name}=1"));
        }
    }
    parts.join("&")
}

fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => (byte as char).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_parameters_are_renamed_for_kubelets() {
        let query = Query::parse("command=sh&command=-c&command=echo+a%26b&stdin=true&stdout=1&tty=false&container=c");
        assert_eq!(streams(&query), "command=sh&command=-c&command=echo%20a%26b&input=1&output=1");
    }

    #[test]
    fn ports_are_joined_to_one_list() {
        for (query, expected) in [("ports=80&ports=81,82", "port=80,81,82"), ("ports=80", "port=80"), ("", "")] {
            assert_eq!(ports(&Query::parse(query)), expected, "{query}");
        }
    }
}
