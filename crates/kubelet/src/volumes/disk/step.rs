//! A list of commands that is carried out until one fails.

use super::host::{Command, Host};
use crate::volumes::VolumeError;
use crate::volumes::command::{Failure, Status};

/// The purpose of a command, which decides how its failure is handled.
#[derive(Clone)]
pub struct Step {
    pub command: Command,
    /// The message of a failure; `{output}` and `{status}` are replaced. None if the command may fail.
    pub failure: Option<String>,
    /// Exit codes that mean that there is nothing to do.
    pub accepted: &'static [i32],
    /// Undoes what the steps before did.
    pub undo: Option<Command>,
    /// Whether nothing is to be done without the program.
    pub may_be_missing: bool,
    /// The output of a command with a secret may contain it.
    pub is_secret: bool,
}

impl Step {
    pub fn required(command: Command, failure: impl Into<String>) -> Self {
        Self {
            command,
            failure: Some(failure.into()),
            accepted: &[],
            undo: None,
            may_be_missing: false,
            is_secret: false,
        }
    }

    pub fn optional(command: Command) -> Self {
        Self { command, failure: None, accepted: &[], undo: None, may_be_missing: false, is_secret: false }
    }

    /// The error that ends the list, if the failure is one.
    fn error(&self, failure: &Failure) -> Option<String> {
        if let Status::Missing(program) = &failure.status {
            let error = format!("{}: {program} is needed for this volume", failure.status);
            return (!self.may_be_missing).then_some(error);
        }
        if matches!(failure.status, Status::Exit(code) if self.accepted.contains(&code)) {
            return None;
        }
        let output = if self.is_secret { "" } else { failure.output.as_str() };
        Some(self.failure.as_ref()?.replace("{status}", &failure.status.to_string()).replace("{output}", output))
    }
}

/// Runs the commands in order. Returns the output of the last one.
pub async fn carry_out(host: &impl Host, steps: &[Step]) -> Result<String, VolumeError> {
    let mut last = String::new();
    for step in steps {
        match host.run(&step.command).await {
            Ok(output) => last = output,
            Err(failure) => match step.error(&failure) {
                Some(error) => {
                    if let Some(undo) = &step.undo
                        && let Err(failure) = host.run(undo).await
                    {
                        tracing::warn!(status = %failure.status, program = undo.program, "cannot undo a step");
                    }
                    return Err(VolumeError::Path(error));
                }
                None => {
                    tracing::debug!(status = %failure.status, program = step.command.program, "ignored a failed step");
                }
            },
        }
    }
    Ok(last)
}
