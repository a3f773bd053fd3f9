// Opens pages in a headless Chromium and prints what it finds wrong with them, as JSON by page.
// usage: node inspect.mjs MODULES CHROMIUM PAGE...   MODULES is the folder that install.sh links: playwright-core and axe-core are in it.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const [modules, executablePath, ...paths] = process.argv.slice(2);
const { chromium } = createRequire(join(resolve(modules), 'node_modules/'))('playwright-core');
const axeSource = readFileSync(join(modules, 'node_modules/axe-core/axe.min.js'), 'utf8');
const flags = ['--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
const DESKTOP = { width: 1280, height: 900 };
const PHONE = { width: 360, height: 640 };
const A4 = { width: 718, height: 1000 }; // of 210 mm at 96 px an inch, less margins of a centimetre

const unfold = (page) => page.evaluate(() => document.querySelectorAll('details').forEach((folded) => { folded.open = true; }));

// What reaches beyond the page's right edge, unless a box that scrolls holds it; in print no box scrolls.
const overflowing = (page, scrolls) => page.evaluate((scrolls) => {
  const inScroller = (element) => scrolls && element.closest('.scroll') !== null && !element.matches('.scroll');
  const wide = [...document.body.querySelectorAll('*')].filter((element) =>
    element.getBoundingClientRect().right > innerWidth + 1 && !inScroller(element));
  const scrolled = document.documentElement.scrollWidth > innerWidth ? [`the page is ${document.documentElement.scrollWidth} px wide`] : [];
  return [...scrolled, ...wide.map((element) => `${element.tagName}: ${element.textContent.slice(0, 60)}`)];
}, scrolls);

// Each element that Tab reaches, in order, with what shows that it has the focus.
async function tabStops(page) {
  await page.evaluate(() => { document.activeElement?.blur(); scrollTo(0, 0); });
  const stops = [];
  for (let i = 0; i < 2000; i += 1) {
    await page.keyboard.press('Tab');
    const stop = await page.evaluate(() => {
      const element = document.activeElement;
      if (element === null || element === document.body || element.dataset.reached) return null;
      element.dataset.reached = 'yes';
      const { outlineStyle, outlineWidth } = getComputedStyle(element);
      return { name: `${element.tagName}: ${(element.getAttribute('aria-label') ?? element.textContent).slice(0, 60)}`,
        visible: outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2 };
    });
    if (stop === null) break;
    stops.push(stop);
  }
  const missed = await page.evaluate(() =>
    [...document.querySelectorAll('summary, a[href], button, input, select, textarea, [tabindex], [onclick], [role=button]')]
      .filter((element) => element.checkVisibility({ contentVisibilityAuto: true }) && !element.dataset.reached)
      .map((element) => `${element.tagName}: ${element.textContent.slice(0, 60)}`));
  await page.evaluate(() => document.querySelectorAll('[data-reached]').forEach((element) => delete element.dataset.reached));
  return { reached: stops.length, unreached: missed, unmarked: stops.filter((stop) => !stop.visible).map((stop) => stop.name) };
}

// Opens the first folded part by keyboard; returns whether it opened. A page without one has nothing to open.
async function opensByKey(page) {
  const summary = page.locator('summary').first();
  if (await summary.count() === 0) return true;
  await summary.focus();
  await page.keyboard.press('Enter');
  return page.evaluate(() => document.querySelector('details').open);
}

async function violations(page, colorScheme) {
  await page.emulateMedia({ colorScheme });
  await page.evaluate(axeSource);
  const { violations: found } = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
  return found.flatMap(({ id, nodes }) => nodes.slice(0, 3).map((node) => `${colorScheme} ${id}: ${node.target.join(' ')}: ${node.failureSummary}`));
}

async function open(browser, url, options, seen) {
  const page = await (await browser.newContext({ viewport: DESKTOP, serviceWorkers: 'block', ...options })).newPage();
  page.on('console', (message) => ['error', 'warning'].includes(message.type()) && seen.console.push(message.text()));
  page.on('pageerror', (error) => seen.console.push(String(error)));
  page.on('request', (request) => request.url() !== url && seen.requests.push(request.url()));
  await page.goto(url, { waitUntil: 'networkidle' });
  return page;
}

async function inspect(browser, path) {
  const url = pathToFileURL(resolve(path)).href;
  const seen = { console: [], requests: [] };
  const unscripted = await open(browser, url, { javaScriptEnabled: false }, seen);
  const page = await open(browser, url, {}, seen);
  const unscriptedText = await unscripted.locator('body').innerText();
  const scriptedText = await page.locator('body').innerText();
  const folded = await tabStops(page);
  await unfold(page);
  const unfolded = await tabStops(page);
  await page.setViewportSize(PHONE);
  const overflow = await overflowing(page, true);
  await page.setViewportSize(DESKTOP);
  const pdf = await page.pdf({ format: 'A4', margin: { top: '1cm', right: '1cm', bottom: '1cm', left: '1cm' } });
  await page.setViewportSize(A4);
  await page.emulateMedia({ media: 'print' });
  const cut = await overflowing(page, false);
  await page.emulateMedia({ media: 'screen' });
  await page.setViewportSize(DESKTOP);
  const { console: errors, requests } = structuredClone(seen); // what follows puts axe into the page, whose doing is not the page's
  const accessibility = [...await violations(page, 'light'), ...await violations(page, 'dark')];
  return {
    console: errors, requests, overflow, cut, accessibility,
    opens_by_key: await opensByKey(unscripted),
    heading: await page.locator('h1').innerText(), scripts: await page.locator('script').count(),
    readable_without_script: unscriptedText === scriptedText && unscriptedText.length > 0,
    reached: folded.reached, unreached: [...folded.unreached, ...unfolded.unreached], unmarked: [...folded.unmarked, ...unfolded.unmarked],
    pdf_is_pdf: pdf.subarray(0, 5).toString() === '%PDF-', pdf_bytes: pdf.length,
  };
}

const browser = await chromium.launch({ executablePath, args: flags, chromiumSandbox: false });
try {
  const found = {};
  for (const path of paths) found[path] = await inspect(browser, path);
  process.stdout.write(JSON.stringify(found));
} finally {
  await browser.close();
}
