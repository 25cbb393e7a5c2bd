//! `weir top` in a terminal: the tables, drawn again each second.
//!
//! `q` or Ctrl-C ends it, `t` and `r` order by time and by rate, the space bar holds the picture.

use std::time::Duration;

use host::terminal::{RawTerminal, window_size};

use super::POLL;
use super::TailArguments;
use super::filter::RequestFilter;
use super::record::TailRecord;
use super::source::RequestSource;
use super::top::{RecentRequests, SCREEN_SECONDS, TABLES, as_text};
use crate::terminal;

/// How often it is drawn.
const DRAW_EVERY: Duration = Duration::from_secs(1);

/// To another screen, without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the first place of the screen, and the rest of a line and of the screen away.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Runs until a key ends it. Returns the exit code.
pub(super) fn run(
    source: &mut RequestSource,
    filter: Option<&RequestFilter>,
    arguments: &TailArguments,
) -> i32 {
    let raw = match RawTerminal::enter() {
        Ok(raw) => raw,
        Err(error) => {
            let error = base::ErrnoText(&error);
            terminal::report_line(format_args!(
                "weir: top: the terminal cannot be used{error}"
            ));
            return 1;
        }
    };
    terminal::print_text(format_args!("{ENTER}"));
    let mut recent = RecentRequests::new(arguments.seconds.unwrap_or(SCREEN_SECONDS));
    let (mut by_time, mut is_held) = (arguments.by_time, false);
    let mut news = String::new();
    let mut drawn = None;
    loop {
        source.read_all(&mut |record: &TailRecord| {
            if filter.is_none_or(|filter| filter.is_match(record)) {
                recent.add(record);
            }
        });
        // The last one: there is one line for it.
        news = source.take_news().pop().unwrap_or(news);
        let mut has_key = false;
        match raw.read_key(POLL) {
            // Ctrl-C, and the end of the input.
            Some(b'q' | b'Q' | 3 | 4) => break,
            Some(b't') => (by_time, has_key) = (true, true),
            Some(b'r') => (by_time, has_key) = (false, true),
            Some(b' ') => (is_held, has_key) = (!is_held, true),
            Some(_) | None => {}
        }
        let is_due = drawn.is_none_or(|drawn| rt::clock::elapsed(drawn) >= DRAW_EVERY);
        if is_due && drawn.is_some() {
            recent.next_second();
        }
        if is_due {
            drawn = Some(rt::clock::read_clock());
        }
        if has_key || is_due && !is_held {
            draw(&recent, by_time, is_held, &news);
        }
    }
    terminal::print_text(format_args!("{LEAVE}"));
    drop(raw);
    0
}

/// Draws the tables over what was there: without clearing the screen first, nothing flickers.
fn draw(recent: &RecentRequests, by_time: bool, is_held: bool, news: &str) {
    let (columns, lines) = window_size();
    // The first line, the last one, and a blank line and a head for each table.
    let rows = lines.saturating_sub(2 + 2 * TABLES.len()) / TABLES.len();
    let text = as_text(recent, by_time, rows.max(1), columns);
    let order = if by_time { "time" } else { "rate" };
    let held = if is_held { ", held" } else { "" };
    let mut screen = HOME.to_owned();
    let footer = format!("by {order}{held}   q quit  r rate  t time  space hold   {news}");
    let shown = text.lines().take(lines.saturating_sub(1));
    for line in shown.chain([&*footer]) {
        screen.extend(line.chars().take(columns));
        screen.push_str(CLEAR_LINE);
        screen.push_str("\r\n");
    }
    // No line feed after the last line: the terminal would scroll.
    screen.truncate(screen.len() - 2);
    screen.push_str(CLEAR_BELOW);
    terminal::print_text(format_args!("{screen}"));
}
