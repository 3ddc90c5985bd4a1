//! Markdown tables whose columns are aligned, so that they read in a terminal too.

/// The first column is text, the others are numbers.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([head[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let dashes: Vec<String> = widths
        .iter()
        .enumerate()
        .map(|(column, width)| if column == 0 { "-".repeat(*width) } else { "-".repeat(width - 1) + ":" })
        .collect();
    let mut out = line(&mut head.iter().copied()) + &line(&mut dashes.iter().map(String::as_str));
    out.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    out
}
