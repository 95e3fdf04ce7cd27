// What HTML needs a script for: names of sliders and figures for screen readers, rows that select, links that jump, a copy button.
// The page works without it. Runs once per page however many apps it holds.
(() => {
  if (window.roofkitEnhanced) return;
  window.roofkitEnhanced = true;
  const put = (node, name, value) => { if (value && node.getAttribute(name) !== value) node.setAttribute(name, value); };
  const enhance = () => {
    document.querySelectorAll('.rk-app .rk-control').forEach((control) => {
      const label = control.querySelector('.widget-label');
      const input = control.querySelector('.noUi-handle, select, textarea') || control.querySelector('[role=group]');
      if (!label || !input) return;
      put(input, 'aria-label', label.textContent);
      put(input, 'aria-description', label.title);
      const readout = control.querySelector('.widget-readout');
      if (readout) {
        put(input, 'aria-valuetext', readout.textContent);
        put(readout, 'role', 'textbox');
        put(readout, 'aria-label', label.textContent + ' as text');
      }
    });
    document.querySelectorAll('.rk-app .rk-toggle').forEach((control) => {
      const label = control.querySelector('.widget-label');
      const group = control.querySelector('.widget-toggle-button')?.parentElement;
      if (label && group) { put(group, 'role', 'group'); put(group, 'aria-label', label.textContent); }
      control.querySelectorAll('.widget-toggle-button').forEach((b) => put(b, 'aria-pressed', String(b.classList.contains('mod-active'))));
    });
    document.querySelectorAll('.rk-app .rk-card').forEach((card) => {
      const figure = card.querySelector('.bqplot');
      const alt = card.querySelector('.rk-alt');
      if (figure && alt) { put(figure, 'role', 'img'); put(figure, 'aria-label', alt.textContent); }
    });
    document.querySelectorAll('.rk-app input[data-query]').forEach((input) => {
      const link = location.origin + location.pathname + input.dataset.query;  // behind a proxy the kernel knows another host
      if (location.pathname.includes('/voila/') && input.value !== link) input.value = link;
    });
  };
  let waiting = false;
  const later = () => {
    if (waiting) return;
    waiting = true;
    setTimeout(() => { waiting = false; enhance(); }, 120);
  };
  new MutationObserver(later).observe(document.body, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ['class'] });
  enhance();
  document.addEventListener('click', (event) => {
    const app = event.target.closest('.rk-app');
    if (!app) return;
    const copy = event.target.closest('[data-copy]');
    if (copy) {
      const input = app.querySelector('input[data-query]');
      input.select();
      const done = () => { copy.textContent = 'Copied'; setTimeout(() => { copy.textContent = 'Copy'; }, 1500); };
      if (navigator.clipboard) navigator.clipboard.writeText(input.value).then(done, () => document.execCommand('copy') && done());
      else if (document.execCommand('copy')) done();
    }
    const row = event.target.closest('tr[data-op]');
    const picker = row && app.querySelector('.rk-picker select');
    if (picker) {
      const at = [...picker.options].findIndex((o) => o.textContent === row.dataset.op);
      picker.selectedIndex = row.classList.contains('rk-selected') ? 0 : Math.max(at, 0);
      picker.dispatchEvent(new Event('change', { bubbles: true }));
    }
    const jump = event.target.closest("a[href^='#rk-']");
    if (jump) {
      const heading = app.querySelector(jump.getAttribute('href'));
      if (heading) { event.preventDefault(); heading.scrollIntoView({ behavior: 'smooth', block: 'start' }); heading.focus({ preventScroll: true }); }
    }
  });
})();
