//! Printing: one line a contender, with the module's cost by its own.

use crate::rounds::Readings;

/// Prints what was measured. A ratio is of one round, so what disturbs a round disturbs both of its parts.
pub fn print(title: &str, all: &[Readings]) {
    let module = all.iter().find(|one| one.is_module).expect("the module is a contender");
    println!("\n{title}");
    println!("{:<30} {:>8} {:>8}   module/this: rounds (middle half), best", "  server CPU in ns", "best", "median");
    for one in all {
        let ns = sorted(one.ns.clone());
        print!("  {:<28} {:>8.0} {:>8.0}", one.name, ns[0], at(&ns, 0.5));
        if one.is_module {
            println!();
            continue;
        }
        let ratios = sorted(module.ns.iter().zip(&one.ns).map(|(module, this)| module / this).collect());
        let best = sorted(module.ns.clone())[0] / ns[0];
        println!("   {:.2} ({:.2} .. {:.2}), {best:.2}", at(&ratios, 0.5), at(&ratios, 0.25), at(&ratios, 0.75));
    }
}

fn sorted(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers
}

/// The number that this part of them is below.
fn at(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}
