"""The what-if explorer: a web page in which an engineer turns the knobs and sees what each variant does and why.

One query string says everything that a page shows (`state.State`). The page's script writes it from the controls
(``assets/explorer.js``), every view is a function of it (`headline`, `figures`), and so is every file that the page
offers (`downloads`). `server` puts them on a port of this machine; `standalone` writes a page that needs no server.
"""
