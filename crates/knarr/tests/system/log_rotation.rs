//! Rotates the log of a pod while it writes and a client follows: every line arrives, once and in order.

use std::process::{Child, Stdio};

use super::harness::{self, Cluster, IMAGE};

/// Flags of a node with small logs.
pub const FLAGS: [&str; 2] = ["--container-log-max-size", "256Ki"];

const NODE: usize = 1;

/// A pod that counts, and a client that records its output.
pub struct Talker {
    listener: Child,
    heard: tempfile::NamedTempFile,
}

impl Talker {
    /// It starts with more than a log may hold and keeps counting, slower, until it is stopped.
    pub fn start(cluster: &Cluster) -> Self {
        let script = "i=0; count() { n=$((i+$1)); while [ $i -lt $n ]; do i=$((i+1)); echo line $i; done; }; \
                      count 1; until test -e /go; do sleep 0.05; done; \
                      count 5999; until test -e /stop; do count 5; sleep 0.05; done; echo end $i";
        cluster.apply(&format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: talker, labels: {{app: talker}}}}
spec:
  nodeName: {}
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers: [{{name: main, image: {IMAGE}, command: ["sh", "-c", {script:?}]}}]
"#,
            cluster.nodes[NODE].name
        ));
        cluster.wait_for("the talker to run", || cluster.ready_pods("app=talker") == 1);
        let heard = tempfile::NamedTempFile::new().expect("a file");
        let mut command = cluster.kubectl_command(&["logs", "-f", "talker"]);
        let output = heard.reopen().expect("the file");
        let listener = command.stdin(Stdio::null()).stdout(output).stderr(Stdio::null()).spawn().expect("kubectl runs");
        let talker = Talker { listener, heard };
        // Only what is written while somebody listens can be expected in full: an earlier rotation would hide it.
        cluster.wait_for("the first line", || !talker.text().is_empty());
        cluster.kubectl(&["exec", "talker", "--", "touch", "/go"]);
        talker
    }

    /// Called after a while, as logs are checked every ten seconds.
    pub fn was_heard_over_a_rotation(mut self, cluster: &Cluster) {
        cluster.wait_for("the log to be set aside", || set_aside(cluster) > 0);
        let before = self.text().len();
        cluster.wait_for("more after that", || self.text().len() > before);
        cluster.kubectl(&["exec", "talker", "--", "touch", "/stop"]);
        harness::wait_for("the end of the log", || self.listener.try_wait().expect("its state").is_some());
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        let (last, counted) = lines.split_last().expect("lines");
        for (number, line) in (1..).zip(counted) {
            assert_eq!(*line, format!("line {number}"), "{} lines were heard", lines.len());
        }
        assert_eq!(*last, format!("end {}", counted.len()));
        cluster.kubectl(&["delete", "pod", "talker", "--wait=false"]);
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.heard.path()).expect("what was heard")
    }
}

/// The number of rotated files of the log.
fn set_aside(cluster: &Cluster) -> usize {
    let uid = cluster.kubectl(&["get", "pod", "talker", "-o", "jsonpath={.metadata.uid}"]);
    let directory = cluster.nodes[NODE].data.join(format!("logs/default_talker_{uid}/main"));
    let names = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().starts_with("0.log.")).count()
}

impl Drop for Talker {
    fn drop(&mut self) {
        // It may have exited by itself.
        let _ = self.listener.kill();
        let _ = self.listener.wait();
    }
}
