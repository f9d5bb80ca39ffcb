//! Whether the server lives, and whether it is ready.

use http::Response;

use crate::answer::{self, Body};
use crate::route::query::Query;
use crate::server::Server;

/// What is checked. Both health endpoints name their checks in this order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    Ping,
    Log,
    Store,
    StoreReady,
    Bootstrap,
    Shutdown,
}

impl Check {
    const LIVE: [Check; 4] = [Check::Ping, Check::Log, Check::Store, Check::Bootstrap];
    const READY: [Check; 6] =
        [Check::Ping, Check::Log, Check::Store, Check::StoreReady, Check::Bootstrap, Check::Shutdown];

    fn name(self) -> &'static str {
        match self {
            Check::Ping => "ping",
            Check::Log => "log",
            Check::Store => "etcd",
            Check::StoreReady => "etcd-readiness",
            Check::Bootstrap => "poststarthook/rbac/bootstrap-roles",
            Check::Shutdown => "shutdown",
        }
    }

    async fn passes(self, server: &Server, live: bool) -> bool {
        match self {
            Check::Ping | Check::Log => true,
            Check::Store | Check::StoreReady => server.store.sync().await.is_ok(),
            // A server that is still setting up lives, though it is not ready.
            Check::Bootstrap => live || *server.ready.borrow(),
            Check::Shutdown => !*server.stopping.borrow(),
        }
    }
}

/// Answers `/healthz`, `/livez` and `/readyz`, whole or one check of them.
pub async fn serve(server: &Server, parts: &[&str], query: &Query) -> Response<Body> {
    let endpoint = parts[0];
    let live = endpoint == "livez";
    let checks: &[Check] = if endpoint == "readyz" { &Check::READY } else { &Check::LIVE };
    if parts.len() > 1 {
        let name = parts[1..].join("/");
        return match checks.iter().find(|check| check.name() == name) {
            None => answer::page_not_found(),
            Some(check) if check.passes(server, live).await => answer::text(200, "ok"),
            Some(_) => answer::text(500, "internal server error: the check failed\n"),
        };
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut lines = String::new();
    let mut failed = Vec::new();
    for check in checks {
        let name = check.name();
        if excluded.contains(&name) {
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
        } else if check.passes(server, live).await {
            lines.push_str(&format!("[+]{name} ok\n"));
        } else {
            failed.push(name);
            lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
        }
    }
    for name in excluded.iter().filter(|name| checks.iter().all(|check| check.name() != **name)) {
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {name:?}\n"));
    }
    if !failed.is_empty() {
        return answer::text(500, format!("{lines}{endpoint} check failed\n"));
    }
    if query.has("verbose") {
        answer::text(200, format!("{lines}{endpoint} check passed\n"))
    } else {
        answer::text(200, "ok")
    }
}
