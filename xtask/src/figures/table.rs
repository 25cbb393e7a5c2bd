//! A table in Markdown whose columns stand below each other in a terminal too.

pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(head: &[&str]) -> Self {
        let head = head.iter().map(|&cell| cell.to_owned()).collect();
        Self { rows: vec![head] }
    }

    pub(super) fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }

    pub(super) fn text(&self) -> String {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
        };
        let widths: Vec<usize> = (0..columns)
            .map(|column| width(column).unwrap_or_default().max(3))
            .collect();
        let mut text = String::new();
        for (i, row) in self.rows.iter().enumerate() {
            text.push_str(&line(row, &widths));
            if i == 0 {
                let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                text.push_str(&line(&rule, &widths));
            }
        }
        text
    }
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let padded = cells.iter().zip(widths);
    let cells: Vec<String> = padded
        .map(|(cell, width)| format!("{cell:<width$}"))
        .collect();
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["a", "b"]);
        table.row(&["long".to_owned(), "1".to_owned()]);
        assert_eq!(
            table.text(),
            "| a    | b   |\n| ---- | --- |\n| long | 1   |\n"
        );
    }
}
