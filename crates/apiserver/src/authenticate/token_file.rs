//! Static tokens from a CSV file in Kubernetes' format: `token,user,uid,"group1,group2"`.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use crate::request::User;

/// Users by the hash of their token, so that the time of a lookup does not depend on how much of a token is correct.
#[derive(Default)]
pub struct TokenFile(HashMap<[u8; 32], User>);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFileError {
    #[error("line {0} of the token file must have at least 3 columns (token, user name, user uid), found {1}")]
    Columns(usize, usize),
    #[error("line {0} of the token file has an empty token")]
    EmptyToken(usize),
    #[error("line {0} of the token file has an unterminated quote")]
    Quote(usize),
}

impl TokenFile {
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut users = HashMap::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let number = index + 1;
            let columns = columns(line).ok_or(TokenFileError::Quote(number))?;
            let [token, name, uid, rest @ ..] = columns.as_slice() else {
                return Err(TokenFileError::Columns(number, columns.len()));
            };
            if token.is_empty() {
                return Err(TokenFileError::EmptyToken(number));
            }
            let groups = rest.first().map(String::as_str).unwrap_or_default();
            let groups =
                groups.split(',').map(str::trim).filter(|group| !group.is_empty()).map(str::to_owned).collect();
            let user = User { name: name.clone(), uid: uid.clone(), groups, ..User::default() };
            users.insert(hash(token), user);
        }
        Ok(TokenFile(users))
    }

    pub fn user(&self, token: &str) -> Option<&User> {
        if self.0.is_empty() { None } else { self.0.get(&hash(token)) }
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The columns of one line; `None` for an unterminated quote.
fn columns(line: &str) -> Option<Vec<String>> {
    let mut columns = vec![String::new()];
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        let column = columns.last_mut()?;
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                column.push('"');
                characters.next();
            }
            '"' => quoted = !quoted,
            ',' if !quoted => columns.push(String::new()),
            other => column.push(other),
        }
    }
    (!quoted).then(|| columns.into_iter().map(|column| column.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_or_refused_with_their_number() {
        let file = TokenFile::parse("a,ann,1\n\nb,bob,2,\"x, y\",more\n").unwrap();
        assert_eq!(file.user("a").unwrap().name, "ann");
        assert_eq!(file.user("b").unwrap().groups, ["x", "y"]);
        assert!(file.user("c").is_none());
        for (text, error) in [
            ("a,b", TokenFileError::Columns(1, 2)),
            ("a,b,c\n,b,c", TokenFileError::EmptyToken(2)),
            ("a,b,c,\"g", TokenFileError::Quote(1)),
        ] {
            assert_eq!(TokenFile::parse(text).err(), Some(error), "{text}");
        }
    }
}
