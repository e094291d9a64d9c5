// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! Orders, priced by tasks in other processes.
//!
//!     orders DONORS HOME POOL TASKS ROWS
//!
//! DONORS are addresses separated by commas; HOME is the number of this process's own, from 0 on.
//! Makes ROWS orders for each of TASKS tasks, which it starts, and prints the sum of the prices.
//! On other machines, start `orders task DONORS HOME POOL` with pipes to this process, such as by
//! ssh(1), and with their own HOME.
//!
//! The list of prices is made once, and every task reads it: by one round trip, and then from its
//! copy.  The orders of a task are lent to it: they move to its memory, and back.  The pipes carry
//! names alone.  The orders of a task that exits early are as they were; this process prices them
//! itself.
use std::error::Error;
use std::io::{stdin, BufRead, BufReader, Write};
use std::process::{exit, Child, Command, Stdio};

use ebbdsm::{far_safe, scope, Box, Ended, Loan, Options, Space, View};

const ARTICLES: usize = 1000;

far_safe! {
    struct Order {
        article: u32,
        count: u32,
        price: f64,
    }
}

fn price(orders: &mut [Order], prices: &[f64]) {
    for order in orders {
        order.price = prices[order.article as usize % ARTICLES] * f64::from(order.count);
    }
}

fn open(arguments: &[String]) -> Result<Space, ebbdsm::Error> {
    Space::open(&Options {
        donors: arguments[0].split(',').map(str::to_string).collect(),
        home: arguments[1].parse().unwrap_or(0),
        pool: arguments[2].clone(),
        key: std::env::var("EBB_KEY").ok(),
        ..Options::default()
    })
}

fn to_hex(name: [u8; 16]) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(word: &str) -> Result<[u8; 16], std::boxed::Box<dyn Error>> {
    Ok(u128::from_str_radix(word, 16)?.to_be_bytes())
}

/// A task: each line of its input is the name of a list of prices, and of orders.
fn task(space: &Space) -> Result<(), std::boxed::Box<dyn Error>> {
    for line in stdin().lines() {
        let line = line?;
        let (prices, orders) = line.split_once(' ').ok_or("no two names in a line")?;
        let prices = View::<[f64]>::from_bytes(from_hex(prices)?);
        let orders = Loan::<[Order]>::from_bytes(from_hex(orders)?);
        let prices = space.read(prices)?;
        space.with_loan(orders, |orders| price(orders, &prices))?;
        println!("done");
        space.settle()?;
    }
    Ok(())
}

fn start(arguments: &[String]) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .arg("task")
        .args(&arguments[..3])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

/// Gives the task the names, and waits until it is done or has exited.
fn ask(task: &mut Child, names: &str) {
    let said = task.stdin.as_mut().map(|pipe| writeln!(pipe, "{names}"));
    let heard = task.stdout.as_mut().map(|pipe| BufReader::new(pipe).read_line(&mut String::new()));
    let _ = (said, heard);
}

fn run(space: &Space, arguments: &[String]) -> Result<f64, std::boxed::Box<dyn Error>> {
    let count = |what: &String| what.parse::<usize>();
    let (tasks, rows) = (count(&arguments[3])?, count(&arguments[4])?);
    let list: Vec<f64> = (0..ARTICLES).map(|article| 1.0 + article as f64).collect();
    let prices = Box::new(space, &list[..])?;
    let mut parts = Vec::new();
    for part in 0..tasks {
        let order =
            |i| Order { article: (part * rows + i) as u32, count: 1 + i as u32 % 3, price: 0.0 };
        parts.push(Box::new(space, &(0..rows).map(order).collect::<Vec<Order>>()[..])?);
    }
    let mut children = Vec::new();
    for _ in 0..tasks {
        children.push(start(arguments)?);
    }
    scope(|s| -> Result<(), std::boxed::Box<dyn Error>> {
        let mut lent = Vec::new();
        for part in &mut parts {
            lent.push(s.lend(part)?);
        }
        std::thread::scope(|threads| {
            for (task, (_, loan)) in children.iter_mut().zip(&lent) {
                let names = to_hex(prices.view().to_bytes()) + " " + &to_hex(loan.to_bytes());
                threads.spawn(move || ask(task, &names));
            }
        });
        for (number, (lent, _)) in lent.into_iter().enumerate() {
            let (part, ended) = lent.wait().map_err(|refused| refused.error)?;
            let is_priced = part.borrow()?.iter().all(|order| order.price > 0.0);
            if ended == Ended::Died || !is_priced {
                eprintln!("task {number} has exited; its orders are priced here");
                price(&mut part.borrow_mut()?, &list);
            }
        }
        Ok(())
    })??;
    for mut task in children {
        drop(task.stdin.take());
        task.wait()?;
    }
    let mut sum = 0.0;
    for part in &parts {
        sum += part.borrow()?.iter().map(|order| order.price).sum::<f64>();
    }
    Ok(sum)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_task = arguments.first().map_or(false, |first| first == "task");
    if arguments.len() != if is_task { 4 } else { 5 } {
        eprintln!(
            "orders: usage: orders DONORS HOME POOL TASKS ROWS | orders task DONORS HOME POOL"
        );
        exit(2);
    }
    let done = match open(&arguments[usize::from(is_task)..]) {
        Err(error) => Err(error.into()),
        Ok(space) if is_task => task(&space),
        Ok(space) => run(&space, &arguments).map(|sum| println!("{sum}")),
    };
    if let Err(error) = done {
        eprintln!("orders: {error}");
        exit(1);
    }
}
