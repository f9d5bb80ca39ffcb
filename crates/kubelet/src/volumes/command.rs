//! Runs programs of the host, such as `mount` and `iscsiadm`.

use std::fmt;
use std::io;
use std::process::Stdio;
use std::time::Duration;

/// A server that does not respond must not keep a pod's worker busy for ever.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// How a program ended that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The host does not have the program.
    Missing(String),
    NotStarted(String),
    TimedOut,
    Killed,
    Exit(i32),
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(program) => write!(formatter, "exec: \"{program}\": executable file not found in $PATH"),
            Self::NotStarted(text) => formatter.write_str(text),
            Self::TimedOut => formatter.write_str("timed out"),
            Self::Killed => formatter.write_str("killed"),
            Self::Exit(code) => write!(formatter, "exit status {code}"),
        }
    }
}

/// Why a program failed, with all its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub status: Status,
    pub output: String,
}

impl Failure {
    fn without_output(status: Status) -> Self {
        Self { status, output: String::new() }
    }
}

/// The standard output of a program.
pub async fn run(program: &str, arguments: &[String]) -> Result<String, Failure> {
    let command =
        tokio::process::Command::new(program).args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = match tokio::time::timeout(TIMEOUT, command).await {
        Err(_) => return Err(Failure::without_output(Status::TimedOut)),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Failure::without_output(Status::Missing(program.to_string())));
        }
        Ok(Err(error)) => {
            return Err(Failure::without_output(Status::NotStarted(format!("exec: \"{program}\": {error}"))));
        }
        Ok(Ok(output)) => output,
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    match output.status.code() {
        Some(0) => Ok(text(&output.stdout)),
        code => {
            let output = format!("{}{}", text(&output.stdout), text(&output.stderr));
            Err(Failure { status: code.map_or(Status::Killed, Status::Exit), output })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failures_say_how_the_program_ended() {
        let shell = |script: &str| ["-c".to_string(), script.to_string()];
        assert_eq!(run("sh", &shell("echo out")).await.as_deref(), Ok("out"));
        let failed = run("sh", &shell("echo out; echo err >&2; exit 3")).await.expect_err("it fails");
        assert_eq!((failed.status.to_string().as_str(), failed.output.as_str()), ("exit status 3", "outerr"));
        assert_eq!(run("sh", &shell("kill -9 $$")).await.expect_err("it is killed").status, Status::Killed);
        let missing = run("no-such-program", &[]).await.expect_err("it is missing");
        assert_eq!(missing.status.to_string(), "exec: \"no-such-program\": executable file not found in $PATH");
    }
}
