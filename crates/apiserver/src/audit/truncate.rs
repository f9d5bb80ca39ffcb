//! Limits on the size of audit events and batches.

use serde_json::Value;

/// The largest event and the largest batch, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub event: usize,
    pub batch: usize,
}

/// Removes the bodies of an event that is too large; false if it stays too large.
pub(super) fn truncate(event: &mut Value, limit: usize) -> bool {
    if event.to_string().len() <= limit {
        return true;
    }
    if let Some(fields) = event.as_object_mut() {
        fields.remove("requestObject");
        fields.remove("responseObject");
    }
    event["annotations"]["audit.k8s.io/truncated"] = "true".into();
    event.to_string().len() <= limit
}

/// Splits a batch so that each part is below the limit.
pub(super) fn split(batch: Vec<Value>, max_bytes: Option<usize>) -> Vec<Vec<Value>> {
    let Some(max_bytes) = max_bytes else { return vec![batch] };
    let mut parts: Vec<Vec<Value>> = vec![Vec::new()];
    let mut size = 0;
    for event in batch {
        let own = event.to_string().len();
        if size + own > max_bytes && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(Vec::new());
            size = 0;
        }
        size += own;
        if let Some(part) = parts.last_mut() {
            part.push(event);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(number: usize) -> Value {
        json!({"kind": "Event", "auditID": number.to_string(), "requestObject": {"data": "x".repeat(100)}})
    }

    #[test]
    fn large_events_are_truncated_and_batches_split() {
        let mut large = event(1);
        assert!(truncate(&mut large, 150));
        assert!(large.get("requestObject").is_none());
        assert_eq!(large["annotations"]["audit.k8s.io/truncated"], "true");
        assert!(!truncate(&mut event(1), 10));
        let size = event(1).to_string().len();
        let parts = split(vec![event(1), event(2), event(3)], Some(2 * size + 1));
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    }
}
