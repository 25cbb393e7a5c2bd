//! One connection to Redis: a batch of commands is written at once, and their replies are read in the same order.

use std::net::SocketAddr;
use std::time::Duration;

use bstr::ByteSlice;

use super::client::RedisFault;
use super::reply::{REPLY_MAX, RedisReply, ReplyScanner, read_reply};
use super::settings::RedisSettings;
use crate::{ConnectSettings, Transport};

/// How much is read at a time, in bytes.
const READ_SIZE: usize = 64 * 1024;

/// A command: its name and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisCommand {
    words: u32,
    /// The words as they are sent, without the line that counts them.
    bytes: Vec<u8>,
}

impl RedisCommand {
    /// A command without arguments; a name of two words is one of two arguments.
    pub fn new(name: &str) -> RedisCommand {
        let words = name.split(' ');
        words.fold(RedisCommand::default(), |command, word| {
            command.arg(word.as_bytes())
        })
    }

    /// The command with one argument more.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<[u8]>) -> RedisCommand {
        let argument = argument.as_ref();
        self.words += 1;
        self.bytes.push(b'$');
        base::text::write_number(argument.len() as u64, &mut self.bytes);
        self.bytes.extend_from_slice(b"\r\n");
        self.bytes.extend_from_slice(argument);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// The command with a number more.
    #[must_use]
    pub fn number(self, number: u64) -> RedisCommand {
        self.arg(number.to_string())
    }

    /// Appends the command as it is sent.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.push(b'*');
        base::text::write_number(u64::from(self.words), out);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.bytes);
    }
}

/// A connection that knows who we are.
pub struct RedisConnection {
    stream: Transport,
    input: Vec<u8>,
}

impl RedisConnection {
    /// Connects to a server and says who we are. `name` is the server's, for its certificate.
    pub(super) async fn open(
        address: SocketAddr,
        name: &str,
        settings: &RedisSettings,
        purpose: ConnectionPurpose,
    ) -> Result<RedisConnection, RedisFault> {
        let limit = settings.timeout;
        let opening = async {
            let away = |error: std::io::Error| RedisFault::Away(format!("{address}: {error}"));
            let options = ConnectSettings {
                timeout: limit,
                keepalive: true,
                ..ConnectSettings::default()
            };
            let socket = crate::connect(&address.into(), &options)
                .await
                .map_err(away)?;
            let mut stream = Transport::plain(socket);
            // Before anything is said: a server whose certificate is not trusted gets no password.
            if let Some(tls) = &settings.tls {
                let parameters = tls.fixed_parameters(name.into());
                let secured = tls.handshake(&mut stream, &parameters, limit).await;
                secured.map_err(|error| RedisFault::Away(format!("{address}: {error}")))?;
            }
            Ok(RedisConnection {
                stream,
                input: Vec::new(),
            })
        };
        let mut connection = rt::timeout(limit, opening).await.unwrap_or_else(|_| {
            Err(RedisFault::Away(format!(
                "{address}: no connection in {limit:?}"
            )))
        })?;
        connection.introduce(settings, purpose).await?;
        Ok(connection)
    }

    /// Says who we are, and which database is meant.
    async fn introduce(
        &mut self,
        settings: &RedisSettings,
        purpose: ConnectionPurpose,
    ) -> Result<(), RedisFault> {
        let mut commands = Vec::new();
        if let Some(password) = &settings.password {
            let auth = RedisCommand::new("AUTH");
            let auth = match &settings.user {
                Some(user) => auth.arg(user),
                None => auth,
            };
            commands.push(auth.arg(password));
        }
        // Sentinel has no databases.
        if settings.database > 0 && purpose == ConnectionPurpose::Data {
            commands.push(RedisCommand::new("SELECT").number(settings.database.into()));
        }
        if commands.is_empty() {
            return Ok(());
        }
        for reply in self.exchange(&commands, settings.timeout).await? {
            // A Sentinel often has no password where its masters have one, and then refuses any.
            if let RedisReply::Error(why) = reply
                && purpose == ConnectionPurpose::Data
            {
                return Err(RedisFault::Away(why));
            }
        }
        Ok(())
    }

    /// Sends commands, and gives their replies. After an error the connection is of no use any more.
    pub async fn exchange(
        &mut self,
        commands: &[RedisCommand],
        limit: Duration,
    ) -> Result<Vec<RedisReply>, RedisFault> {
        let mut bytes = Vec::new();
        commands
            .iter()
            .for_each(|command| command.write(&mut bytes));
        let exchange = async {
            let away = |error: std::io::Error| RedisFault::Away(error.to_string());
            self.stream.write_all(&bytes).await.map_err(away)?;
            self.stream.flush().await.map_err(away)?;
            let mut replies = Vec::with_capacity(commands.len());
            while replies.len() < commands.len() {
                replies.push(self.next_reply().await?);
            }
            Ok(replies)
        };
        rt::timeout(limit, exchange)
            .await
            .unwrap_or_else(|_| Err(RedisFault::Away(format!("no reply in {limit:?}"))))
    }

    async fn next_reply(&mut self) -> Result<RedisReply, RedisFault> {
        let invalid =
            |_| RedisFault::Away("it sent something that is no reply of Redis".to_owned());
        let mut scanner = ReplyScanner::default();
        let end = loop {
            if let Some(end) = scanner.find_end(&self.input).map_err(invalid)? {
                break end;
            }
            if self.input.len() > REPLY_MAX {
                return Err(RedisFault::Away("a reply is too long".to_owned()));
            }
            let (stream, input) = (&self.stream, &mut self.input);
            let read =
                std::future::poll_fn(|context| stream.poll_read_into(context, input, READ_SIZE));
            match read.await {
                Ok(0) => return Err(RedisFault::Away("it closed the connection".to_owned())),
                Ok(_) => {}
                Err(error) => return Err(RedisFault::Away(error.to_string())),
            }
        };
        let reply = read_reply(&self.input[..end]).map_err(invalid)?;
        self.input.drain(..end);
        Ok(reply)
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionPurpose {
    /// Commands on keys.
    Data,
    /// Questions to Sentinel.
    Sentinel,
}

/// The address in a redirect of a Redis Cluster, `MOVED 3999 127.0.0.1:6381`, which begins with this word.
pub(super) fn redirected_to(error: &str, word: &str) -> Option<(String, u16)> {
    let place = error.strip_prefix(word)?.strip_prefix(' ')?;
    let (_, address) = place.split_once(' ')?;
    let (host, port) = address.as_bytes().rsplit_once_str(":")?;
    let host = host
        .strip_prefix(b"[")
        .and_then(|host| host.strip_suffix(b"]"))
        .unwrap_or(host);
    let host = host.to_str().ok().filter(|host| !host.is_empty())?;
    Some((host.to_owned(), port.to_str().ok()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_arrays_of_texts() {
        let mut out = Vec::new();
        RedisCommand::new("SENTINEL get")
            .arg(b"a\r\n")
            .number(12)
            .write(&mut out);
        let expected = "*4\r\n$8\r\nSENTINEL\r\n$3\r\nget\r\n$3\r\na\r\n\r\n$2\r\n12\r\n";
        assert_eq!(out.as_bstr(), expected);
    }

    #[test]
    fn redirects_name_a_server() {
        let found = |text: &str| redirected_to(text, text.split(' ').next().unwrap_or_default());
        assert_eq!(
            found("MOVED 3999 127.0.0.1:6381"),
            Some(("127.0.0.1".to_owned(), 6381))
        );
        assert_eq!(found("ASK 1 [::1]:6381"), Some(("::1".to_owned(), 6381)));
        for other in [
            "MOVED",
            "MOVED 1",
            "MOVED 1 x",
            "MOVED 1 :1",
            "ERR no",
            "MOVED 1 a:99999",
            "",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
