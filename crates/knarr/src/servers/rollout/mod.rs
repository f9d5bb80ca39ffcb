//! Rolls new keys out over all servers of a cluster, step by step and one server at a time.
//!
//! A rollout is a record in the store: the files of each step (encrypted for servers), the current step, and the servers that
//! have applied it. Every server polls the record (`task`). When it is its turn, it saves the files of the step and restarts with
//! them (`files`). When all servers have applied a step and nothing depends on the previous one, the next step starts.
//! `authority` and `encryption` compute the steps; `page` lets administrators start a rollout and read its progress.

pub mod authority;
pub mod encryption;
mod files;
mod page;
mod rewrite;
mod task;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::seal::Sealed;

pub use files::{Files, install_pending};
pub use page::{PATH, Progress, Request, open, page};
pub use task::{Rollouts, run};

/// Which keys are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// The cluster's certificate authority.
    Authority,
    /// The key that encrypts objects at rest.
    Encryption,
}

/// A rollout as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    pub kind: Kind,
    /// The files of each step.
    pub steps: Vec<Sealed>,
    /// The current step, from 0.
    pub step: usize,
    /// The last step that each server has applied.
    pub applied: BTreeMap<String, usize>,
    /// The hash of the new authority; empty if the encryption key is replaced.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub authority: String,
    /// Does not wait for nodes that still use the old authority; they must join again.
    #[serde(default)]
    pub is_forced: bool,
}

/// The next action of a server.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Records that it runs with the files of the current step.
    Acknowledge,
    /// Restarts with the files of the current step.
    Apply,
    /// Starts the next step, if nothing depends on the previous one.
    Advance,
    /// Ends the rollout.
    Finish,
    Wait,
}

impl Rollout {
    fn has_applied(&self, server: &str) -> bool {
        self.applied.get(server) == Some(&self.step)
    }

    /// The server whose turn it is: the first one that has not applied the current step.
    pub fn waiting_for<'a>(&self, servers: &'a [String]) -> Option<&'a String> {
        servers.iter().find(|server| !self.has_applied(server))
    }

    /// The next action of the server `own`. `servers` are all servers, in the same order on each of them; `has_files` says
    /// whether this server runs with the files of the current step.
    pub fn next(&self, servers: &[String], own: &str, has_files: bool) -> Action {
        match self.waiting_for(servers) {
            Some(server) if server != own => Action::Wait,
            Some(_) if has_files => Action::Acknowledge,
            Some(_) => Action::Apply,
            // Only the first server starts the next step.
            None if servers.first().is_none_or(|first| first != own) => Action::Wait,
            None if self.step + 1 < self.steps.len() => Action::Advance,
            None => Action::Finish,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_follow_one_after_the_other_and_the_first_goes_on() {
        let servers = ["a", "b"].map(str::to_owned);
        let sealed = Sealed::new("secret", Vec::new()).unwrap();
        let rollout = |step: usize, applied: &[(&str, usize)]| Rollout {
            kind: Kind::Authority,
            steps: vec![sealed.clone(); 2],
            step,
            applied: applied.iter().map(|(server, step)| ((*server).to_owned(), *step)).collect(),
            authority: String::new(),
            is_forced: false,
        };
        for (rollout, own, has_files, expected) in [
            (rollout(0, &[]), "a", false, Action::Apply),
            (rollout(0, &[]), "b", false, Action::Wait),
            (rollout(0, &[]), "a", true, Action::Acknowledge),
            (rollout(0, &[("a", 0)]), "b", false, Action::Apply),
            (rollout(0, &[("a", 0)]), "a", true, Action::Wait),
            (rollout(0, &[("a", 0), ("b", 0)]), "a", true, Action::Advance),
            (rollout(0, &[("a", 0), ("b", 0)]), "b", true, Action::Wait),
            (rollout(1, &[("a", 0), ("b", 0)]), "a", false, Action::Apply),
            (rollout(1, &[("a", 1), ("b", 1)]), "a", true, Action::Finish),
        ] {
            assert_eq!(rollout.next(&servers, own, has_files), expected, "{rollout:?} {own}");
        }
    }
}
