//! Results of health checks as service level indicators.

use crate::{Counter, Family, Gauge};

/// Results of health checks since the start, by check and endpoint.
pub struct Indicators {
    last: Gauge,
    results: Counter,
}

impl Default for Indicators {
    fn default() -> Self {
        Indicators {
            last: Gauge::new(
                "kubernetes_healthcheck",
                "[STABLE] Last result of each health check: 1 passed, 0 failed.",
                &["name", "type"],
            ),
            results: Counter::new(
                "kubernetes_healthchecks_total",
                "[STABLE] Results of health checks, by outcome.",
                &["name", "status", "type"],
            ),
        }
    }
}

impl Indicators {
    /// Records a result. Names come from the process, not from requests.
    pub fn record(&self, check: &str, endpoint: &'static str, passed: bool) {
        self.last.set(&[check, endpoint], f64::from(u8::from(passed)));
        self.results.add(&[check, if passed { "success" } else { "error" }, endpoint], 1);
    }

    /// The page of `/metrics/slis`.
    pub fn page(&self) -> String {
        let mut out = String::new();
        self.last.write(&mut out);
        self.results.write(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_counted_by_result() {
        let indicators = Indicators::default();
        for passed in [true, true, false] {
            indicators.record("etcd", "readyz", passed);
        }
        let page = indicators.page();
        for line in [
            "# TYPE kubernetes_healthcheck gauge",
            "kubernetes_healthcheck{name=\"etcd\",type=\"readyz\"} 0",
            "kubernetes_healthchecks_total{name=\"etcd\",status=\"error\",type=\"readyz\"} 1",
            "kubernetes_healthchecks_total{name=\"etcd\",status=\"success\",type=\"readyz\"} 2",
        ] {
            assert!(page.lines().any(|own| own == line), "{line} in {page}");
        }
        assert_eq!(crate::reference::differences("kubelet", "/metrics/slis", &page, &[]), Vec::<String>::new());
    }
}
