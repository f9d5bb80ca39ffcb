//! The health endpoints `/healthz`, `/livez` and `/readyz`.
//!
//! Each check looks at something that can fail: the store, a step of the start, or a component of this process as its
//! supervisor sees it. Names are Kubernetes' where it has a check for the same thing.

use std::sync::Arc;

use http::Response;
use knarr_supervisor::ComponentReport;

use crate::background;
use crate::request::{ANONYMOUS, User};
use crate::response::{self, Body};
use crate::route::query::Query;
use crate::state::ApiServer;

/// A health check: what it looks at, and its name.
#[derive(Clone, Debug)]
struct Check {
    name: Arc<str>,
    subject: Subject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// Fails only by not responding.
    Ping,
    /// The store responds.
    Store,
    /// The store accepts writes.
    StoreReady,
    StoreQuota,
    /// The plugins that hold encryption keys.
    KeyServices,
    Informers,
    Fairness,
    /// The start is complete.
    Started,
    /// A component of the API server, by its name.
    Component(&'static str),
    /// A component of this process, by the name of the check.
    Supervised,
    Shutdown,
}

const COMPONENT: &str = "component/";
const INFORMER: &str = "informer/";

/// Steps of the start and components of the API server, in the order of reports.
const STARTED: [(&str, Subject); 15] = [
    ("poststarthook/priority-and-fairness-config-consumer", Subject::Fairness),
    ("poststarthook/priority-and-fairness-filter", Subject::Fairness),
    ("poststarthook/start-apiextensions-controllers", Subject::Component(background::DEFINITIONS)),
    ("poststarthook/crd-informer-synced", Subject::Component(background::DEFINITIONS)),
    ("poststarthook/start-system-namespaces-controller", Subject::Started),
    ("poststarthook/start-cluster-authentication-info-controller", Subject::Started),
    ("poststarthook/storage-readiness", Subject::StoreReady),
    ("poststarthook/start-legacy-token-tracking-controller", Subject::Component(background::TOKEN_USES)),
    ("poststarthook/start-service-ip-repair-controllers", Subject::Component(background::REPAIR)),
    ("poststarthook/rbac/bootstrap-roles", Subject::Started),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", Subject::Started),
    ("poststarthook/priority-and-fairness-config-producer", Subject::Fairness),
    ("poststarthook/bootstrap-controller", Subject::Started),
    ("poststarthook/start-kubernetes-service-cidr-controller", Subject::Started),
    ("poststarthook/apiservice-status-remote-available-controller", Subject::Component(background::AVAILABILITY)),
];

/// What checks are evaluated against, at one moment.
struct Facts {
    /// The store's response to a read that must be current.
    read: Result<(), String>,
    write: Result<(), String>,
    quota: Result<(), String>,
    /// `None` without plugins that hold encryption keys.
    key_services: Option<Result<(), String>>,
    is_ready: bool,
    is_stopping: bool,
    has_flow_schemas: bool,
    components: Vec<ComponentReport>,
    /// A server that is still starting is live but not ready.
    live: bool,
}

impl Facts {
    async fn collect(server: &ApiServer, live: bool) -> Facts {
        let status = server.backend.store.status();
        Facts {
            read: server.backend.store.sync().await.map(drop).map_err(|error| error.to_string()),
            write: status.failure.map_or(Ok(()), Err),
            quota: status.alarm.map_or(Ok(()), Err),
            key_services: server.security.encryption.as_ref().and_then(|encryption| encryption.health()),
            is_ready: *server.ready.borrow(),
            is_stopping: *server.backend.stopping.borrow(),
            has_flow_schemas: server.backend.fairness.is_loaded(),
            components: server.telemetry.components.report(),
            live,
        }
    }

    /// The checks of an endpoint, in order.
    fn checks(&self, endpoint: &str) -> Vec<Check> {
        let check = |(name, subject): (&str, Subject)| Check { name: name.into(), subject };
        let mut checks = vec![check(("ping", Subject::Ping)), check(("etcd", Subject::Store))];
        if endpoint == "readyz" {
            checks.push(check(("etcd-readiness", Subject::StoreReady)));
            checks.push(check(("informer-sync", Subject::Informers)));
        }
        checks.push(check(("storage-quota", Subject::StoreQuota)));
        if self.key_services.is_some() {
            checks.push(check(("kms-providers", Subject::KeyServices)));
        }
        checks.extend(STARTED.map(check));
        // The supervisor restarts components; restarting the whole process is no better.
        if endpoint != "livez" {
            let supervised = self.components.iter().filter(|one| !one.name.starts_with(INFORMER));
            checks.extend(
                supervised
                    .map(|one| Check { name: format!("{COMPONENT}{}", one.name).into(), subject: Subject::Supervised }),
            );
        }
        if endpoint == "readyz" {
            checks.push(check(("shutdown", Subject::Shutdown)));
        }
        checks
    }

    fn evaluate(&self, check: &Check) -> Result<(), String> {
        let started = || match self.live || self.is_ready {
            true => Ok(()),
            false => Err("the API server is starting".to_owned()),
        };
        match check.subject {
            // A condition that an administrator must see, but which a restart or another server does not resolve.
            Subject::Ping | Subject::StoreQuota => Ok(()),
            Subject::Store => self.read.clone(),
            Subject::KeyServices => self.key_services.clone().unwrap_or(Ok(())),
            // A full disk is not fixed by a restart.
            Subject::StoreReady if self.live => self.read.clone(),
            Subject::StoreReady => self.read.clone().and_then(|()| self.write.clone()),
            Subject::Informers => {
                started()?;
                self.component(|name| name.starts_with(INFORMER))
            }
            Subject::Fairness if !self.live && !self.has_flow_schemas => Err("no FlowSchemas are loaded".to_owned()),
            Subject::Fairness => {
                started()?;
                if self.live { Ok(()) } else { self.component(|name| name == background::FAIRNESS) }
            }
            Subject::Started => started(),
            Subject::Component(own) => {
                started()?;
                if self.live { Ok(()) } else { self.component(|name| name == own) }
            }
            Subject::Supervised => {
                let own = check.name.strip_prefix(COMPONENT).unwrap_or_default();
                self.component(|name| name == own)
            }
            Subject::Shutdown if self.is_stopping => Err("process is shutting down".to_owned()),
            Subject::Shutdown => Ok(()),
        }
    }

    /// The failure of the components that a name selects.
    fn component(&self, selects: impl Fn(&str) -> bool) -> Result<(), String> {
        let failed = self.components.iter().find(|one| one.failure.is_some() && selects(&one.name));
        match failed.and_then(|one| Some((&one.name, one.failure.as_ref()?))) {
            Some((name, failure)) => Err(format!("{name}: {failure}")),
            None => Ok(()),
        }
    }

    /// What is reported beside a check that passes.
    fn condition(&self, check: &Check) -> String {
        match (&check.subject, &self.quota) {
            (Subject::StoreQuota, Err(alarm)) => format!(": {alarm}"),
            _ => String::new(),
        }
    }
}

/// Handles `/healthz`, `/livez` and `/readyz` and their individual checks. Anonymous users get no reasons.
pub async fn serve(server: &ApiServer, parts: &[&str], query: &Query, user: &User) -> Response<Body> {
    let endpoint = match parts[0] {
        "livez" => "livez",
        "readyz" => "readyz",
        _ => "healthz",
    };
    let facts = Facts::collect(server, endpoint == "livez").await;
    let checks = facts.checks(endpoint);
    let shown = |reason: String| if user.name == ANONYMOUS { "reason withheld".to_owned() } else { reason };
    if parts.len() > 1 {
        let name = parts[1..].join("/");
        return match checks.iter().find(|check| *check.name == *name).map(|check| facts.evaluate(check)) {
            None => response::page_not_found(),
            Some(Ok(())) => response::text(200, "ok"),
            Some(Err(reason)) => response::text(500, format!("internal server error: {}\n", shown(reason))),
        };
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut lines = String::new();
    let mut is_failed = false;
    for check in &checks {
        let name = &check.name;
        if excluded.contains(&&**name) {
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        let result = facts.evaluate(check);
        server.telemetry.health.record(name, endpoint, result.is_ok());
        match result {
            Ok(()) => lines.push_str(&format!("[+]{name} ok{}\n", facts.condition(check))),
            Err(reason) => {
                is_failed = true;
                lines.push_str(&format!("[-]{name} failed: {}\n", shown(reason)));
            }
        }
    }
    for name in excluded.iter().filter(|name| checks.iter().all(|check| *check.name != ***name)) {
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {name:?}\n"));
    }
    if is_failed {
        return response::text(500, format!("{lines}{endpoint} check failed\n"));
    }
    if query.has("verbose") {
        response::text(200, format!("{lines}{endpoint} check passed\n"))
    } else {
        response::text(200, "ok")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Facts {
        let report = |name: &str| ComponentReport { name: name.into(), failure: None, restarts: 0, panics: 0 };
        Facts {
            read: Ok(()),
            write: Ok(()),
            quota: Ok(()),
            key_services: None,
            is_ready: true,
            is_stopping: false,
            has_flow_schemas: true,
            components: [background::DEFINITIONS, "informer/Pod", "scheduler"].map(report).into(),
            live: false,
        }
    }

    fn failed(facts: &Facts, endpoint: &str) -> Vec<(String, String)> {
        let checks = facts.checks(endpoint);
        checks.iter().filter_map(|check| Some((check.name.to_string(), facts.evaluate(check).err()?))).collect()
    }

    fn names(facts: &Facts, endpoint: &str) -> Vec<String> {
        failed(facts, endpoint).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn a_healthy_server_passes_all_checks() {
        for endpoint in ["healthz", "livez", "readyz"] {
            assert_eq!(failed(&healthy(), endpoint), [], "{endpoint}");
        }
    }

    #[test]
    fn every_check_but_ping_and_the_quota_can_fail() {
        let mut broken = healthy();
        broken.read = Err("no disk".to_owned());
        broken.write = Err("no disk".to_owned());
        broken.is_ready = false;
        broken.is_stopping = true;
        broken.has_flow_schemas = false;
        broken.components.iter_mut().for_each(|one| one.failure = Some("panicked".to_owned()));
        let passing: Vec<String> = {
            let failed = names(&broken, "readyz");
            let all = broken.checks("readyz").into_iter().map(|check| check.name.to_string());
            all.filter(|name| !failed.contains(name)).collect()
        };
        assert_eq!(passing, ["ping", "storage-quota"]);
    }

    #[test]
    fn a_failed_component_is_reported_with_its_reason() {
        let mut facts = healthy();
        facts.components[2].failure = Some("it panicked: index out of bounds".to_owned());
        let expected = "scheduler: it panicked: index out of bounds".to_owned();
        assert_eq!(failed(&facts, "readyz"), [("component/scheduler".to_owned(), expected)]);
        assert_eq!(names(&facts, "healthz"), ["component/scheduler"]);
        facts.live = true;
        assert_eq!(failed(&facts, "livez"), [], "the supervisor restarts it");
        let mut facts = healthy();
        facts.components[1].failure = Some("it panicked".to_owned());
        assert_eq!(names(&facts, "readyz"), ["informer-sync"]);
        let mut facts = healthy();
        facts.components[0].failure = Some("it panicked".to_owned());
        assert_eq!(names(&facts, "readyz").len(), 3, "two of Kubernetes' names, and the component's own");
    }

    #[test]
    fn a_store_that_cannot_write_is_not_ready_but_live() {
        let mut facts = healthy();
        facts.write = Err("No space left on device".to_owned());
        assert_eq!(names(&facts, "readyz"), ["etcd-readiness", "poststarthook/storage-readiness"]);
        facts.live = true;
        assert_eq!(failed(&facts, "livez"), []);
    }

    #[test]
    fn an_exceeded_quota_is_a_condition() {
        let mut facts = healthy();
        facts.quota = Err("etcdserver: mvcc: database space exceeded".to_owned());
        assert_eq!(failed(&facts, "readyz"), []);
        let checks = facts.checks("readyz");
        let quota = checks.iter().find(|check| &*check.name == "storage-quota").unwrap();
        assert_eq!(facts.condition(quota), ": etcdserver: mvcc: database space exceeded");
    }
}
