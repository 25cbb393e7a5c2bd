//! The page of a report: one file, without scripts, that can be mailed.

use std::fmt::Write as _;

use super::opening;
use super::plot::{self, escaped};
use super::{Report, Row, Section, Table, number};

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1c2326; --soft: #66737a; --line: #d9dfe2; --back: #fbfcfc; --good: #1b7f4b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9eb; --soft: #97a4aa; --line: #333d42; --back: #14191b; --good: #5bc78d; --bad: #f28b82; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; } h2 small { color: var(--soft); font-weight: normal; }
p.how, .facts, .unit, .spread, .note, caption { color: var(--soft); }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; width: 100%; }
caption { text-align: left; padding: .3rem 0; } th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child, td:first-child { text-align: left; } .spread, .verdict { white-space: nowrap; } .ours { font-weight: 600; } .spread, .note, .unit { font-size: .8rem; font-weight: normal; }
.good { color: var(--good); } .bad { color: var(--bad); }
figure { margin: 1.5rem 0; } figcaption { font-weight: 600; } svg text { font-size: 11px; fill: var(--soft); } svg .inside { fill: #fff; } svg .grid { stroke: var(--line); } svg .share { stroke: var(--back); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .85rem; } .legend svg { vertical-align: middle; }
nav a { margin-right: 1rem; } a { color: inherit; } dt { float: left; clear: left; width: 4.5rem; } dd { margin: 0 0 .3rem 4.5rem; } details { margin: 1rem 0; } summary { cursor: pointer; }
@media (max-width: 40rem) { table { display: block; overflow-x: auto; } svg { max-width: 100%; height: auto; } }
";

pub(super) fn html(report: &Report) -> String {
    let machine = &report.machine;
    let mut page = format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport content=\"width=device-width\">\n<title>Weir compared with other servers, {date}</title>\n<style>{STYLE}</style>\n<h1>Weir compared with other servers</h1>\n<p class=facts>{date} · {} · {} cores, {} MB · {}<br>commit {}</p>\n<p class=facts>{}</p>\n",
        escaped(&machine.processor),
        machine.cores,
        machine.memory_mb,
        escaped(&machine.kernel),
        escaped(&machine.commit),
        machine
            .programs
            .iter()
            .map(|(name, version)| format!("{name}: {}", escaped(version)))
            .collect::<Vec<_>>()
            .join(" · "),
        date = escaped(&machine.date),
    );
    page.push_str(
        "<p>Everything ran on loopback on one machine, load generators included, the contenders in turn within each round. \
         Ratios are medians of the rounds' own ratios, with the least and the largest behind them; absolute numbers belong to this machine.</p>\n",
    );
    page.push_str(&contents(report));
    page.push_str(&opening::html(report));
    page.push_str(&goals(report));
    for section in &report.sections {
        page.push_str(&shown(section));
    }
    if !report.left_out.is_empty() {
        page.push_str("<h2>Left out</h2>\n<ul>\n");
        for line in &report.left_out {
            let _ = writeln!(page, "<li>{}</li>", escaped(line));
        }
        page.push_str("</ul>\n");
    }
    page.push_str("</html>\n");
    page
}

/// Where the experiments are.
fn contents(report: &Report) -> String {
    let mut text = String::from("<nav>");
    for section in &report.sections {
        let _ = write!(text, "<a href=\"#{0}\">{0}</a> ", escaped(&section.id));
    }
    text + "</nav>\n"
}

/// Each goal: those that were missed first, the others to be unfolded.
fn goals(report: &Report) -> String {
    let tables = report.sections.iter().flat_map(|section| &section.tables);
    let goals = tables.flat_map(|table| {
        let rows = table.rows.iter();
        rows.filter_map(move |row| Some((table.is_reached(row)?, goal(table, row)?)))
    });
    let (reached, missed): (Vec<_>, Vec<_>) = goals.partition(|(reached, _)| *reached);
    let head = "<tr><th>row<th>measured<th>Weir<th>goal\n";
    let mut text = format!(
        "<h2>Goals</h2>\n<p>They were set before the measurements, most of them close to what the machine permits at all. \
         {} of {} are reached.</p>\n",
        reached.len(),
        missed.len() + reached.len(),
    );
    let _ = writeln!(
        text,
        "<table><caption>Missed</caption>{head}{}</table>",
        missed.into_iter().map(|(_, row)| row).collect::<String>()
    );
    let _ = writeln!(
        text,
        "<details><summary>Reached</summary><table>{head}{}</table></details>",
        reached.into_iter().map(|(_, row)| row).collect::<String>()
    );
    text
}

/// The row of a goal; `None` where there is none.
fn goal(table: &Table, row: &Row) -> Option<String> {
    let goal = row.goal?;
    let (class, word) = match table.is_reached(row)? {
        true => ("good", "reached"),
        false => ("bad", "missed"),
    };
    Some(format!(
        "<tr><td>{} {}<td class=unit>{}<td>{}<td class=\"verdict {class}\">{word}<br><span class=note>{}</span>\n",
        escaped(&row.score),
        escaped(&row.name),
        escaped(&table.title),
        table
            .ours()
            .map(|ours| cell(table, row, ours))
            .unwrap_or_default(),
        goal.shown()
    ))
}

fn shown(section: &Section) -> String {
    let mut text = format!(
        "<h2 id=\"{id}\">{title} <small>{id}</small></h2>\n<p class=how>{how} Load average before and after {:.1}, {:.1}; took {:.0} s.</p>\n",
        section.load.0,
        section.load.1,
        section.seconds,
        id = escaped(&section.id),
        title = escaped(&section.title),
        how = escaped(&section.how),
    );
    for table in &section.tables {
        text.push_str(&as_html(table));
    }
    for plot in &section.plots {
        text.push_str(&plot::svg(plot));
        text.push('\n');
    }
    text
}

fn as_html(table: &Table) -> String {
    let mut text = format!(
        "<table><caption>{} ({})</caption><tr><th>",
        escaped(&table.title),
        escaped(&table.unit)
    );
    let ours = table.ours();
    for (at, name) in table.contenders.iter().enumerate() {
        let class = if Some(at) == ours { " class=ours" } else { "" };
        let _ = write!(text, "<th{class}>{}", escaped(name));
    }
    text.push('\n');
    for row in &table.rows {
        let goal = row.goal.map(|goal| goal.shown()).unwrap_or_default();
        let _ = write!(
            text,
            "<tr><td>{} {} <span class=note>{goal}</span>",
            escaped(&row.score),
            escaped(&row.name)
        );
        for at in 0..row.cells.len() {
            let class = match (Some(at) == ours, table.is_reached(row)) {
                (true, Some(true)) => " class=\"ours good\"",
                (true, Some(false)) => " class=\"ours bad\"",
                (true, None) => " class=ours",
                (false, _) => "",
            };
            let _ = write!(text, "<td{class}>{}", cell(table, row, at));
        }
        text.push('\n');
    }
    text + "</table>\n"
}

fn cell(table: &Table, row: &Row, at: usize) -> String {
    let cell = &row.cells[at];
    let value = cell.middle().map_or("–".to_owned(), number);
    let note = match cell.note.as_str() {
        "" => String::new(),
        note => format!("<br><span class=note>{}</span>", escaped(note)),
    };
    match table.ratio(row, at) {
        Some(ratio) if Some(at) != table.base => format!(
            "{:.2} <span class=spread>{:.2}–{:.2}</span><br><span class=spread>{value}</span>{note}",
            ratio.middle, ratio.least, ratio.most
        ),
        _ => format!("{value}{note}"),
    }
}
