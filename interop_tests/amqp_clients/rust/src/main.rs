//! Runs lapin, unchanged, through what applications do with it; see program.py for what it prints.

use std::{collections::BTreeMap, env, future::Future, io, pin::Pin, time::Duration};

use async_rs::Runtime;
use futures_lite::StreamExt;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer,
    ExchangeKind,
    options::*,
    types::{AMQPValue, FieldArray, FieldTable, ShortString},
};
use tokio::time::{sleep, timeout};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
type Scenario = fn() -> Pin<Box<dyn Future<Output = Outcome>>>;

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() {
    let scenarios: [(&str, Scenario); 9] = [
        ("publish-and-consume", || Box::pin(publish_and_consume())),
        ("large-body", || Box::pin(large_body())),
        ("nack-to-the-dead-letters", || Box::pin(dead_letters())),
        ("mandatory-return", || Box::pin(mandatory())),
        ("headers-of-every-type", || Box::pin(headers())),
        ("routing", || Box::pin(routing())),
        ("transactions", || Box::pin(transactions())),
        ("errors-close-the-channel-only", || Box::pin(failures())),
        ("reconnect-after-a-restart", || Box::pin(reconnect())),
    ];
    for (name, run) in scenarios {
        let result = match timeout(Duration::from_secs(100), run()).await {
            Ok(Ok(())) => "ok".to_string(),
            Ok(Err(error)) => error.to_string().replace('\n', " "),
            Err(_) => "it takes too long".to_string(),
        };
        println!("RESULT {name} {result}");
    }
    println!("END");
}

/// Asks the test for something, and comes back when it is done.
fn outside(what: &str) -> Outcome {
    println!("DO {what}");
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}

async fn connect() -> Outcome<Connection> {
    let url = env::args().nth(1).ok_or("no address")?;
    let runtime = Runtime::tokio_current();
    Ok(Connection::connect_with_runtime(&url, ConnectionProperties::default(), runtime).await?)
}

fn unique(name: &str) -> ShortString {
    format!("rust-{name}-{}", std::process::id()).into()
}

fn table(entries: &[(&str, AMQPValue)]) -> FieldTable {
    let entries: BTreeMap<ShortString, AMQPValue> = entries
        .iter()
        .map(|(name, value)| ((*name).into(), value.clone()))
        .collect();
    entries.into()
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn same<T: PartialEq + std::fmt::Debug>(seen: T, wanted: T) -> Outcome {
    if seen == wanted {
        Ok(())
    } else {
        Err(format!("{seen:?}, not {wanted:?}").into())
    }
}

async fn queue(channel: &Channel, name: &str, arguments: FieldTable) -> Outcome<ShortString> {
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    Ok(channel
        .queue_declare(unique(name), options, arguments)
        .await?
        .name()
        .clone())
}

/// Waits until the broker has it.
async fn publish(
    channel: &Channel,
    exchange: &str,
    key: &str,
    body: &[u8],
    properties: BasicProperties,
) -> Outcome {
    let sent = channel.basic_publish(
        exchange.into(),
        key.into(),
        BasicPublishOptions::default(),
        body,
        properties,
    );
    match sent.await?.await? {
        Confirmation::Ack(None) => Ok(()),
        other => Err(format!("not confirmed: {other:?}").into()),
    }
}

async fn next(consumer: &mut Consumer) -> Outcome<lapin::message::Delivery> {
    Ok(timeout(LIMIT, consumer.next())
        .await?
        .ok_or("no consumer any more")??)
}

async fn get(channel: &Channel, queue: &ShortString) -> Outcome<lapin::message::Delivery> {
    for _ in 0..3000 {
        if let Some(found) = channel
            .basic_get(queue.clone(), BasicGetOptions::default())
            .await?
        {
            return Ok(found.delivery);
        }
        sleep(Duration::from_millis(20)).await;
    }
    Err(format!("nothing came to {queue}").into())
}

async fn publish_and_consume() -> Outcome {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    let jobs = queue(&channel, "jobs", FieldTable::default()).await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    channel.basic_qos(5, BasicQosOptions::default()).await?;
    let consume = channel.basic_consume(
        jobs.clone(),
        "".into(),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    );
    let mut consumer = consume.await?;
    for number in 0..50 {
        let persistent = BasicProperties::default().with_delivery_mode(2);
        publish(
            &channel,
            "",
            jobs.as_str(),
            format!("job {number}").as_bytes(),
            persistent,
        )
        .await?;
    }
    for number in 0..50 {
        let delivery = next(&mut consumer).await?;
        same(
            String::from_utf8_lossy(&delivery.data).into_owned(),
            format!("job {number}"),
        )?;
        delivery.ack(BasicAckOptions::default()).await?;
    }
    same(
        channel
            .queue_delete(jobs, QueueDeleteOptions::default())
            .await?,
        0,
    )?;
    connection.close(200, "done".into()).await?;
    Ok(())
}

async fn large_body() -> Outcome {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    let large = queue(&channel, "large", FieldTable::default()).await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let body: Vec<u8> = (0..15_000_000u32)
        .map(|number| (number % 251) as u8)
        .collect();
    publish(
        &channel,
        "",
        large.as_str(),
        &body,
        BasicProperties::default(),
    )
    .await?;
    let delivery = get(&channel, &large).await?;
    same(delivery.data == body, true)?;
    delivery.ack(BasicAckOptions::default()).await?;
    connection.close(200, "done".into()).await?;
    Ok(())
}

async fn dead_letters() -> Outcome {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let letters = queue(&channel, "letters", FieldTable::default()).await?;
    let arguments = table(&[
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(letters.as_str())),
    ]);
    let work = queue(&channel, "work", arguments).await?;
    publish(
        &channel,
        "",
        work.as_str(),
        b"poison",
        BasicProperties::default(),
    )
    .await?;
    get(&channel, &work)
        .await?
        .nack(BasicNackOptions {
            requeue: false,
            multiple: false,
        })
        .await?;
    let letter = get(&channel, &letters).await?;
    same(letter.data.as_slice(), b"poison".as_slice())?;
    let found = letter.properties.headers().clone().ok_or("no headers")?;
    match found.inner().get("x-first-death-reason") {
        Some(AMQPValue::LongString(reason)) => same(reason.to_string(), "rejected".to_string())?,
        other => return Err(format!("x-first-death-reason is {other:?}").into()),
    }
    letter.ack(BasicAckOptions::default()).await?;
    connection.close(200, "done".into()).await?;
    Ok(())
}

async fn mandatory() -> Outcome {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let options = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let sent = channel.basic_publish(
        "".into(),
        unique("nobody"),
        options,
        b"lost",
        BasicProperties::default(),
    );
    match sent.await?.await? {
        Confirmation::Ack(Some(returned)) => {
            same(returned.reply_code, 312)?;
            same(returned.delivery.data.as_slice(), b"lost".as_slice())?;
        }
        other => return Err(format!("not returned: {other:?}").into()),
    }
    connection.close(200, "done".into()).await?;
    Ok(())
}

async fn headers() -> Outcome {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let plain = queue(&channel, "headers", FieldTable::default()).await?;
    let mut list = FieldArray::default();
    list.push(AMQPValue::ShortShortInt(-3));
    list.push(text("in a list"));
    let wanted = table(&[
        ("boolean", AMQPValue::Boolean(true)),
        ("byte", AMQPValue::ShortShortUInt(200)),
        ("short", AMQPValue::ShortInt(-300)),
        ("int", AMQPValue::LongInt(-70_000)),
        ("unsigned", AMQPValue::LongUInt(4_000_000_000)),
        ("long", AMQPValue::LongLongInt(-5_000_000_000)),
        ("float", AMQPValue::Float(1.5)),
        ("double", AMQPValue::Double(2.25)),
        ("text", text("häder")),
        ("list", AMQPValue::FieldArray(list)),
        ("time", AMQPValue::Timestamp(1_700_000_000)),
        (
            "table",
            AMQPValue::FieldTable(table(&[("inner", AMQPValue::Void)])),
        ),
        ("bytes", AMQPValue::ByteArray(vec![0u8, 255].into())),
    ]);
    let sent = BasicProperties::default()
        .with_headers(wanted.clone())
        .with_content_type("text/plain".into())
        .with_priority(3)
        .with_message_id("m-1".into())
        .with_timestamp(1_700_000_000);
    publish(&channel, "", plain.as_str(), b"body", sent.clone()).await?;
    let delivery = get(&channel, &plain).await?;
    delivery.ack(BasicAckOptions::default()).await?;
    same(delivery.properties.clone(), sent)?;
    connection.close(200, "done".into()).await?;
    Ok(())
}

async fn routing() -> Outcome {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let (first, second) = (unique("topics"), unique("headers-exchange"));
    for (name, kind) in [
        (&first, ExchangeKind::Topic),
        (&second, ExchangeKind::Headers),
    ] {
        channel
            .exchange_declare(
                name.clone(),
                kind,
                ExchangeDeclareOptions::default(),
                FieldTable::default(),
            )
            .await?;
    }
    channel
        .exchange_bind(
            second.clone(),
            first.clone(),
            "a.#".into(),
            ExchangeBindOptions::default(),
            FieldTable::default(),
        )
        .await?;
    let found = queue(&channel, "routed", FieldTable::default()).await?;
    let arguments = table(&[("x-match", text("any")), ("kind", text("right"))]);
    channel
        .queue_bind(
            found.clone(),
            second,
            "".into(),
            QueueBindOptions::default(),
            arguments,
        )
        .await?;
    for (key, kind) in [("b.c", "right"), ("a.b", "wrong"), ("a.b.c", "right")] {
        let properties = BasicProperties::default().with_headers(table(&[("kind", text(kind))]));
        publish(&channel, first.as_str(), key, key.as_bytes(), properties).await?;
    }
    let delivery = get(&channel, &found).await?;
    same(delivery.data.as_slice(), b"a.b.c".as_slice())?;
    delivery.ack(BasicAckOptions::default()).await?;
    same(
        channel
            .queue_delete(found, QueueDeleteOptions::default())
            .await?,
        0,
    )?;
    connection.close(200, "done".into()).await?;
    Ok(())
}

async fn transactions() -> Outcome {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    let ledger = queue(&channel, "ledger", FieldTable::default()).await?;
    channel.tx_select().await?;
    for (body, kept) in [("gone", false), ("kept", true)] {
        let options = BasicPublishOptions::default();
        channel
            .basic_publish(
                "".into(),
                ledger.clone(),
                options,
                body.as_bytes(),
                BasicProperties::default(),
            )
            .await?;
        if kept {
            channel.tx_commit().await?;
        } else {
            channel.tx_rollback().await?;
        }
    }
    let delivery = get(&channel, &ledger).await?;
    same(delivery.data.as_slice(), b"kept".as_slice())?;
    delivery.ack(BasicAckOptions::default()).await?;
    channel.tx_commit().await?;
    same(
        channel
            .queue_delete(ledger, QueueDeleteOptions::default())
            .await?,
        0,
    )?;
    connection.close(200, "done".into()).await?;
    Ok(())
}

async fn failures() -> Outcome {
    let connection = connect().await?;
    let (poor, other) = (
        connection.create_channel().await?,
        connection.create_channel().await?,
    );
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    match poor
        .queue_declare(unique("nowhere"), passive, FieldTable::default())
        .await
    {
        Ok(_) => return Err("a queue that nobody declared".into()),
        Err(error) => same(
            error
                .to_string()
                .contains("NOT_FOUND - no queue 'rust-nowhere"),
            true,
        )
        .map_err(|_| format!("the error is {error}"))?,
    }
    queue(&other, "still-here", FieldTable::default()).await?;
    connection.close(200, "done".into()).await?;
    Ok(())
}

async fn reconnect() -> Outcome {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let durable = queue(&channel, "durable", FieldTable::default()).await?;
    let persistent = BasicProperties::default().with_delivery_mode(2);
    publish(&channel, "", durable.as_str(), b"before", persistent).await?;
    let mut consumer = channel
        .basic_consume(
            durable.clone(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    same(next(&mut consumer).await?.redelivered, false)?;
    outside("restart")?;
    match timeout(LIMIT, consumer.next()).await? {
        Some(Ok(_)) => return Err("a delivery by a connection that is gone".into()),
        Some(Err(_)) | None => {}
    }
    let again = connect().await?;
    let channel = again.create_channel().await?;
    let delivery = get(&channel, &durable).await?;
    same(
        (delivery.data.as_slice(), delivery.redelivered),
        (b"before".as_slice(), true),
    )?;
    delivery.ack(BasicAckOptions::default()).await?;
    again.close(200, "done".into()).await?;
    Ok(())
}
