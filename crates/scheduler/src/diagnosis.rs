//! Why a pod is unschedulable, as its condition and event report it.

use std::collections::BTreeMap;

use crate::framework::Rejection;

/// The reasons why no node fits.
#[derive(Debug, Default)]
pub struct Diagnosis {
    pub all_nodes: usize,
    /// Reasons with how many nodes they were found on.
    reasons: BTreeMap<String, usize>,
    /// Why no node was even checked.
    pub rejected: Option<String>,
    /// The plugins that rejected a node: events that they wait for may help the pod.
    pub plugins: Vec<&'static str>,
    /// The outcome of preemption.
    pub after: String,
}

impl Diagnosis {
    pub fn new(all_nodes: usize) -> Self {
        Diagnosis { all_nodes, ..Diagnosis::default() }
    }

    pub fn add(&mut self, rejection: &Rejection) {
        for reason in &rejection.reasons {
            match self.reasons.get_mut(reason) {
                Some(count) => *count += 1,
                None => {
                    self.reasons.insert(reason.clone(), 1);
                }
            }
        }
        self.add_plugin(rejection.plugin);
    }

    /// Nodes that a plugin excluded without checking each.
    pub fn add_reason(&mut self, reason: &str, nodes: usize) {
        if nodes > 0 {
            *self.reasons.entry(reason.to_owned()).or_default() += nodes;
        }
    }

    pub fn add_plugin(&mut self, plugin: &'static str) {
        if !self.plugins.contains(&plugin) {
            self.plugins.push(plugin);
        }
    }

    /// Why nodes did not fit, the most frequent reason first; a few reasons are enough.
    pub fn in_short(&self) -> String {
        const MAX_REASONS: usize = 4;
        let mut reasons: Vec<(&String, &usize)> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let mut parts: Vec<String> =
            reasons.iter().take(MAX_REASONS).map(|(reason, count)| format!("{count} {reason}")).collect();
        if reasons.len() > MAX_REASONS {
            parts.push(format!("and {} more reasons", reasons.len() - MAX_REASONS));
        }
        parts.join(", ")
    }

    pub fn message(&self) -> String {
        if self.all_nodes == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        let mut text = nodes_message(self.all_nodes, &self.reasons, self.rejected.as_deref());
        if !self.after.is_empty() {
            text.push(' ');
            text.push_str(&self.after);
        }
        text
    }
}

/// "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had …."
pub fn nodes_message(all: usize, reasons: &BTreeMap<String, usize>, rejected: Option<&str>) -> String {
    let mut text = format!("0/{all} nodes are available");
    if let Some(rejected) = rejected {
        text.push_str(&format!(": {rejected}."));
    } else {
        let mut parts: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        parts.sort();
        if parts.is_empty() {
            text.push('.');
        } else {
            text.push_str(&format!(": {}.", parts.join(", ")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_and_sorted() {
        let mut diagnosis = Diagnosis::new(3);
        diagnosis.add(&Rejection::unresolvable("TaintToleration", "node(s) had untolerated taint(s)"));
        diagnosis.add(&Rejection::resolvable("NodeResourcesFit", "Insufficient cpu"));
        diagnosis.add(&Rejection::resolvable("NodeResourcesFit", "Insufficient cpu"));
        diagnosis.after = "preemption: none".into();
        assert_eq!(
            diagnosis.message(),
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. preemption: none"
        );
        assert_eq!(diagnosis.in_short(), "2 Insufficient cpu, 1 node(s) had untolerated taint(s)");
        for reason in ["a", "b", "c"] {
            diagnosis.add_reason(reason, 1);
        }
        assert!(diagnosis.in_short().ends_with(", and 1 more reasons"), "{}", diagnosis.in_short());
        assert_eq!(Diagnosis::new(0).message(), "no nodes available to schedule pods");
    }
}
