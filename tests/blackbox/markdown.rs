//! Tables, headings and links of the documentation.

/// The first cells of the rows of the table whose header begins with this cell, without backticks.
#[track_caller]
pub fn column(markdown: &str, header: &str) -> Vec<String> {
    rows(markdown, header).into_iter().map(|row| row[0].clone()).collect()
}

/// The cells of the rows of the table whose header begins with this cell, without backticks.
#[track_caller]
pub fn rows(markdown: &str, header: &str) -> Vec<Vec<String>> {
    let mut lines = markdown.lines().skip_while(|line| !line.starts_with(&format!("| {header}")));
    assert!(lines.next().is_some(), "no table begins with {header}");
    lines.skip(1).take_while(|line| line.starts_with('|')).map(cells).collect()
}

fn cells(row: &str) -> Vec<String> {
    // A bar inside of a cell is written `\|`.
    let row = row.replace("\\|", "\0");
    let cells = row.trim_matches('|').split(" | ");
    cells.map(|cell| cell.replace('\0', "|").trim().trim_matches('`').to_owned()).collect()
}

/// The lines from this heading to the next of the same level.
#[track_caller]
pub fn section<'a>(markdown: &'a str, heading: &str) -> Vec<&'a str> {
    let level = heading.split(' ').next().unwrap_or_default();
    let mut lines = markdown.lines().skip_while(|line| *line != heading);
    assert!(lines.next().is_some(), "no heading {heading}");
    lines.take_while(|line| !line.starts_with(&format!("{level} "))).collect()
}

/// The places that links lead to: `(file, anchor)`, either of them empty.
pub fn links(markdown: &str) -> Vec<(String, String)> {
    let targets = markdown.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets
        .map(|target| target.split_once('#').unwrap_or((target, "")))
        .map(|(file, anchor)| (file.to_owned(), anchor.to_owned()))
        .collect()
}

/// The anchors of all headings, as GitHub makes them.
pub fn anchors(markdown: &str) -> Vec<String> {
    let mut in_code = false;
    let mut anchors = Vec::new();
    for line in markdown.lines() {
        in_code ^= line.starts_with("```");
        if !in_code && line.starts_with('#') {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
            anchors.push(kept.collect::<String>().replace(' ', "-"));
        }
    }
    anchors
}
