//! Events as lines of text, the log format `legacy`.

use std::fmt::Write;

use knarr_api::value::Read;
use serde_json::Value;

/// One line without its end.
pub fn text_line(event: &Value) -> String {
    let or = |text: &str, otherwise: &str| if text.is_empty() { otherwise.to_owned() } else { text.to_owned() };
    let groups = |of: &str| {
        let quoted: Vec<String> =
            event.items(&[of, "groups"]).iter().filter_map(Value::as_str).map(|group| format!("{group:?}")).collect();
        quoted.join(",")
    };
    let user = event.text(&["user", "username"]);
    let own_groups = if user.is_empty() { String::new() } else { groups("user") };
    let (acting, acting_groups) = match event.get("impersonatedUser") {
        Some(acting) => (acting.text(&["username"]).to_owned(), or(&groups("impersonatedUser"), "<lookup>")),
        None => ("<self>".to_owned(), "<lookup>".to_owned()),
    };
    let address = event.items(&["sourceIPs"]).first().and_then(Value::as_str).unwrap_or_default();
    let code = event.integer(&["responseStatus", "code"]).map_or("<deferred>".to_owned(), |code| code.to_string());
    let mut line = format!("{} AUDIT:", event.text(&["requestReceivedTimestamp"]));
    for (name, value) in [
        ("id", event.text(&["auditID"]).to_owned()),
        ("stage", event.text(&["stage"]).to_owned()),
        ("ip", or(address, "<unknown>")),
        ("method", event.text(&["verb"]).to_owned()),
        ("user", or(user, "<none>")),
        ("groups", or(&own_groups, "<none>")),
        ("as", acting),
        ("asgroups", acting_groups),
        ("user-agent", event.text(&["userAgent"]).to_owned()),
        ("namespace", or(event.text(&["objectRef", "namespace"]), "<none>")),
        ("uri", event.text(&["requestURI"]).to_owned()),
    ] {
        // Writing to a String does not fail.
        let _ = write!(line, " {name}={value:?}");
    }
    format!("{line} response=\"{code}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_are_those_of_kubernetes() {
        let event = json!({
            "auditID": "1", "stage": "ResponseComplete", "verb": "list", "requestURI": "/api/v1/namespaces/n/pods",
            "user": {"username": "ann", "groups": ["a", "b"]}, "sourceIPs": ["10.0.0.1"], "userAgent": "kubectl",
            "objectRef": {"namespace": "n"}, "responseStatus": {"code": 200},
            "requestReceivedTimestamp": "2026-01-01T00:00:00.000000Z",
        });
        assert_eq!(
            text_line(&event),
            r#"2026-01-01T00:00:00.000000Z AUDIT: id="1" stage="ResponseComplete" ip="10.0.0.1" method="list" user="ann" groups="\"a\",\"b\"" as="<self>" asgroups="<lookup>" user-agent="kubectl" namespace="n" uri="/api/v1/namespaces/n/pods" response="200""#
        );
        assert_eq!(
            text_line(&json!({"impersonatedUser": {"username": "bob", "groups": ["g"]}})),
            r#" AUDIT: id="" stage="" ip="<unknown>" method="" user="<none>" groups="<none>" as="bob" asgroups="\"g\"" user-agent="" namespace="<none>" uri="" response="<deferred>""#
        );
    }
}
