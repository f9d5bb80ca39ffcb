//! The credentials file: lines such as `aws_access_key_id = …`, as the tools of Amazon write them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rusty_s3::Credentials;

use crate::Error;

const KEY: &str = "aws_access_key_id";
const SECRET: &str = "aws_secret_access_key";
const TOKEN: &str = "aws_session_token";

/// Reads the file, which nobody but its owner's group may read.
pub(crate) fn load(path: &Path) -> Result<Credentials, Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(failed)?.permissions().mode() & 0o007 != 0 {
        return Err(Error::Permissions(path.to_owned()));
    }
    parse(&std::fs::read_to_string(path).map_err(failed)?)
        .map_err(|missing| Error::Credentials(path.to_owned(), missing))
}

/// The credentials of the first profile, or what is missing.
fn parse(text: &str) -> Result<Credentials, &'static str> {
    let mut profiles = 0;
    let (mut key, mut secret, mut token) = (None, None, None);
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            profiles += 1;
        }
        let Some((name, value)) = line.split_once('=').filter(|_| profiles < 2 && !line.starts_with(['#', ';'])) else {
            continue;
        };
        let value = Some(value.trim()).filter(|value| !value.is_empty());
        match name.trim() {
            KEY => key = value,
            SECRET => secret = value,
            TOKEN => token = value,
            _ => {}
        }
    }
    let (key, secret) = (key.ok_or(KEY)?, secret.ok_or(SECRET)?);
    Ok(match token {
        Some(token) => Credentials::new_with_token(key, secret, token),
        None => Credentials::new(key, secret),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_profile_counts() {
        let text = "# a comment = with a sign\n[default]\naws_access_key_id = id\naws_secret_access_key=se=cret/+\nregion = x\n\
                    [other]\naws_access_key_id = other\naws_session_token = other\n";
        let found = parse(text).unwrap();
        assert_eq!((found.key(), found.secret(), found.token()), ("id", "se=cret/+", None));
        let found = parse("aws_access_key_id=a\naws_secret_access_key=b\naws_session_token=c").unwrap();
        assert_eq!(found.token(), Some("c"));
        assert_eq!(parse("aws_secret_access_key=b").unwrap_err(), KEY);
        assert_eq!(parse("aws_access_key_id=a\naws_secret_access_key=\n").unwrap_err(), SECRET);
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "aws_access_key_id=a\naws_secret_access_key=b\n").unwrap();
        for (mode, is_accepted) in [(0o600, true), (0o640, true), (0o644, false)] {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(load(file.path()).is_ok(), is_accepted, "{mode:o}");
        }
    }
}
