//! Renders values as the Go types of Kubernetes print them, where clients see such text.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// A selector as events and conditions print it; "nil" when there is none.
pub fn selector(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "nil".to_owned() };
    let labels: String =
        selector.match_labels.iter().flatten().map(|(name, value)| format!("{name}: {value},")).collect();
    let expression = |each: &k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement| {
        let values = each.values.as_deref().unwrap_or_default().join(" ");
        format!("LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},", each.key, each.operator)
    };
    let expressions: String = selector.match_expressions.iter().flatten().map(expression).collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

/// Several errors in one line; a single one has no brackets.
pub fn failures(texts: &[String]) -> String {
    match texts {
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// The text of a refused request: the server's own message, or one for its code when the response is no Status.
pub fn refusal(error: &kube::Error, verb: &str, resource: &str) -> String {
    let kube::Error::Api(status) = error else { return error.to_string() };
    let is_api_status = status.reason != "Failed to parse error data";
    if is_api_status {
        return status.message.clone();
    }
    let text = match status.code {
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 => format!("{resource} is forbidden: {}", status.message),
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
                .to_owned()
        }
        _ => format!("an error on the server ({:?}) has prevented the request from succeeding", status.message),
    };
    format!("{text} ({verb} {resource})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;
    use serde_json::json;

    #[test]
    fn selectors() {
        for (value, expected) in [
            (json!(null), "nil"),
            (
                json!({"matchLabels": {"app": "a", "b": "c"}}),
                "&LabelSelector{MatchLabels:map[string]string{app: a,b: c,},MatchExpressions:[]LabelSelectorRequirement{},}",
            ),
            (
                json!({"matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}]}),
                "&LabelSelector{MatchLabels:map[string]string{},MatchExpressions:[]LabelSelectorRequirement{\
                 LabelSelectorRequirement{Key:k,Operator:In,Values:[x y],},},}",
            ),
        ] {
            let parsed: Option<LabelSelector> = serde_json::from_value(value).unwrap();
            assert_eq!(selector(parsed.as_ref()), expected);
        }
    }

    #[test]
    fn refusals_and_failures() {
        let bare = kube::Error::Api(
            Status::failure("404 page not found", "Failed to parse error data").with_code(404).boxed(),
        );
        let expected = "the server could not find the requested resource (get pods.metrics.k8s.io)";
        assert_eq!(refusal(&bare, "get", "pods.metrics.k8s.io"), expected);
        let refused = kube::Error::Api(Status::failure("no such thing", "NotFound").with_code(404).boxed());
        assert_eq!(refusal(&refused, "get", "pods.metrics.k8s.io"), "no such thing");
        assert_eq!(failures(&["a".to_owned()]), "a");
        assert_eq!(failures(&["a".to_owned(), "b".to_owned()]), "[a, b]");
    }
}
